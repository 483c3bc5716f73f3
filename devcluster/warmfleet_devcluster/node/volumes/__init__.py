"""A pod's volumes as folders of this machine.

Imports `references` and `host`. Public names: `pod_volumes.PodVolumes`, `mount.Mount`; `contents` computes
the files of a volume, `atomic_folder` replaces them all at once.
"""
