"""The client of the Kubernetes API: one connection, one list-and-watch loop.

`config` finds the API server and the identity (kubeconfig or service account), `client.KubernetesClient`
sends requests, `lists` reads lists page by page, `informer.Informer` keeps a copy of one kind of object up
to date, `paths` builds the paths of the REST API, `decoding` turns what cannot be decoded into an error,
`errors` and `media_types` are the API's. Imports contracts. The `kubernetes` package is imported only when a
connection needs it: that costs half a second and 23 MB.
"""
