"""The Kubernetes control plane: binaries, certificates, flags, kubeconfigs, volume provisioner."""
