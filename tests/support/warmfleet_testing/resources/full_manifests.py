"""Valid manifests that together fill every field of the schema, and ways to change them."""

import copy
from collections.abc import Callable
from typing import Any, Final

import yaml

from warmfleet_contracts.resources.model_deployment import ModelDeployment

Manifest = dict[str, Any]


def manifest_of(deployment: ModelDeployment) -> Manifest:
    """The manifest again: only what was set, under its names in YAML, quantities in canonical form."""
    return deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)


MINIMAL: Final[Manifest] = yaml.safe_load("""
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: probe}
spec:
  model: {source: {catalog: {name: smollm2-135m-instruct}}}
  kvCache: {size: 64Mi}
""")

FULL: Final[Manifest] = yaml.safe_load("""
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: probe, labels: {a: b}, annotations: {c: d}}
spec:
  model:
    servedNames: [probe, org/big]
    source: {huggingFace: {repository: org/big, revision: 0123456789012345678901234567890123456789,
             tokenSecretRef: {name: hub, key: token}}}
    cache: {persistentVolumeClaim: {claimName: models}}
  engine: {type: VLLM, image: "registry.example/worker:1", extraArgs: [--seed, "1"],
           dtype: BFloat16, weightQuantization: Int8,
           maxModelLengthTokens: 8192, maxRunningSequences: 128, maxBatchedTokens: 4096,
           env: [{name: A, value: b}, {name: C, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}
  kvCache: {deviceMemoryPercent: 80, dtype: Int8, blockSizeTokens: 64,
            prefixCaching: Disabled, sharing: Deployment}
  replicas: 3
  autoscaling:
    mode: Advisory
    minReplicas: 0
    maxReplicas: 9
    utilization: {scaleUpPercent: 80, scaleDownPercent: 50}
    latency:
      firstToken: {percentile: 90, targetMilliseconds: 2000}
      betweenTokens: {percentile: 99, targetMilliseconds: 80}
    capacityMisses: {mode: Disabled, percent: 20, windowSeconds: 60, pauseAfterShrinkSeconds: 600}
    scaleUp: {replicas: 4, percent: 50, periodSeconds: 15, stabilizationSeconds: 5,
              panicPercent: 150, panicSeconds: 90}
    scaleDown: {periodSeconds: 120, stabilizationSeconds: 600, paybackSeconds: 900}
    zero: {idleSeconds: 1800, holdSeconds: 120}
  routing: {policy: ConsistentHash}
  rollout: {maxSurge: 0, maxUnavailable: 1, drainTimeoutSeconds: 60, startupTimeoutSeconds: 600,
    prewarmTimeoutSeconds: 5}
  accelerator: {resourceName: amd.com/gpu, count: 2, runtimeClassName: nvidia, sharedMemorySize: 8Gi}
  resources: {limits: {memory: 32Gi}}
  nodeSelector: {zone: a}
  tolerations: [{operator: Exists, tolerationSeconds: 30}]
  affinity: {nodeAffinity: {}}
  priorityClassName: high
  imagePullSecrets: [{name: registry}]
  podTemplate: {metadata: {labels: {x: y}}, spec: {hostNetwork: false}}
  suspend: true
""")


def changed(manifest: Manifest, change: Callable[[Manifest], object]) -> Manifest:
    """A copy, changed by `change`."""
    copied = copy.deepcopy(manifest)
    change(copied)
    return copied


def _with_spec(**members: Any) -> Manifest:
    return changed(MINIMAL, lambda manifest: manifest["spec"].update(members))


ALL: Final[dict[str, Manifest]] = {
    "full": FULL,
    "minimal": MINIMAL,
    "empty-dir": _with_spec(
        model={"source": {"catalog": {"name": "a"}}, "cache": {"emptyDir": {"sizeLimit": "2Gi"}}}
    ),
    "verified": _with_spec(engine={"verifyHits": "1/100"}),
    "short-steps": _with_spec(engine={"targetStepMilliseconds": 50}),
    "image": _with_spec(model={"source": {"image": {"reference": "a@sha256:b", "pullPolicy": "Always"}}}),
    "claim": _with_spec(
        model={"source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "a/b"}}}
    ),
}
"""Between them every field of `spec` but localPath, which no cluster accepts."""

LOCAL: Final = _with_spec(model={"source": {"localPath": {"path": "/models/a"}}})

STATUS: Final[Manifest] = yaml.safe_load("""
observedGeneration: 3
selector: warmfleet.dev/model-deployment=probe,warmfleet.dev/component=worker
replicas: 3
readyReplicas: 2
updatedReplicas: 3
desiredReplicas: 3
readySummary: 2/3
servedNames: [probe, probe-8b]
nameClaims:
  - {name: probe, since: "2026-01-02T03:04:05Z"}
  - {name: probe-8b, since: "2026-01-02T03:04:06Z"}
url: http://warmfleet-router.warmfleet.svc:8080/v1
release: warmfleet/warmfleet
revision: 5f8c6b7d9
image: registry.example/worker@sha256:abc
accelerator: 2 x nvidia.com/gpu
model:
  digest: abc
  sizeBytes: 97000000
  revision: 0123456789012345678901234567890123456789
  resolvedFrom: org/big@main
kvCache: {capacityTokens: 100000, usedPercent: 40, hitPercent: 87}
equalBits: Promised
lastStart: {pod: probe-a, phaseMilliseconds: {schedule: 12, process: 300, firstToken: 40}}
waitingRequests: 4
scaling:
  asleepSince: "2026-01-02T03:04:05Z"
  decisions:
    - {time: "2026-01-02T03:04:05Z", from: 2, to: 3, reason: DemandAboveSupply, limitedBy: RateLimit,
       message: "Demand rose.", recommendations: {tokens: 3},
       inputs: {demandTokens: "90000"}, victim: probe-a}
conditions:
  - {type: Ready, status: "False", observedGeneration: 3, lastTransitionTime: "2026-01-02T03:04:05Z",
     reason: Progressing, message: 2 of 3 workers are ready}
""")
