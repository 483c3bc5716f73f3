"""What a pod's manifest refers to: its own fields, resources, Secrets, ConfigMaps, claims, tokens.

Imports `errors` and the API client. Public names: `downward_api` (`PodContext`, `field_value`,
`resource_value`), `config_objects` (`ConfigObjects`, `decoded_data`), `pod_objects.PodObjects`.
"""
