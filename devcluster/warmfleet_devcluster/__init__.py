"""A real Kubernetes control plane without containers, for tests, laptops and teaching.

Rooms: `lifecycle` starts and stops everything, `control_plane` builds and configures etcd and Kubernetes' own
programs, `network` is the cluster's network namespace with Services and DNS, `node` runs pods as processes,
`real_node` runs them as containers by a kubelet.
Programs beside them: `addons` (Services, DNS, volumes), `hollow` (nodes on which nothing runs). Imports
`contracts` and `runtime`. Public names: `lifecycle.running` (`start_supervisor`, `stop_devcluster`),
`settings.DevclusterSettings`, `state.StateFolder`, `clock`, `errors`.
"""
