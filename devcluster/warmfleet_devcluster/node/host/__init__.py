"""This machine, as containers use it: network namespaces, images, programs, accelerator devices.

Imports `errors` only. Public names: `images.ImageList`, `network` (`AddressPool`, `connect_pod`),
`machine_paths`.
"""
