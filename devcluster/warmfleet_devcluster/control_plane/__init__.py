"""The Kubernetes control plane: programs, certificates, command lines, kubeconfigs, volume provisioner.

Imports `settings`, `state` and addresses of `network`. Public names: `build.build_programs`,
`binaries.find_binaries`, `credentials.Credentials`, `flags` (one function per program),
`provisioner.provision`.
"""
