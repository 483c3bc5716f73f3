"""Kubernetes objects as the operator reads them: kinds, pods, rollout state, served names. Pure.

Imports contracts only.
"""
