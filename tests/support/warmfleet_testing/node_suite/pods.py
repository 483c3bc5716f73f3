"""What a pod sees of its node, as a real API server, scheduler and controllers see it too: one list of tests.

`tests/kubernetes/nodes` runs it on process nodes, `tests/containers` on a real one, by a fixture `pods` of
their own.
"""

import base64
import json
from typing import Any

import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.cluster.pods import IMAGE, Pods, deployment, main, pod

WEB = "exec python -m http.server 8000 --directory /etc"


def secret(name: str, **texts: str) -> dict[str, Any]:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def test_a_deployment_becomes_available_and_rolls_over_to_its_next_revision(pods: Pods) -> None:
    probe = {"httpGet": {"path": "/hosts", "port": "http"}, "periodSeconds": 1}
    web = main(WEB, ports=[{"name": "http", "containerPort": 8000}], readinessProbe=probe)
    pods.apply(deployment("web", 2, web))
    pods.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    first = {item["metadata"]["name"] for item in pods.get("pods")["items"]}

    pods.kubectl("set", "env", "deployment/web", "REVISION=2")
    pods.kubectl("rollout", "status", "deployment/web", "--timeout=90s")

    def current() -> set[str]:
        return {item["metadata"]["name"] for item in pods.get("pods")["items"]}

    assert not eventually(current, lambda names: len(names) == 2 and not names & first) & first
    for item in pods.get("pods")["items"]:
        assert item["status"]["podIP"].startswith("10.244.")
        assert item["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_container_has_the_environment_volumes_and_rights_of_its_manifest(pods: Pods) -> None:
    resources = {"limits": {"memory": "64Mi"}, "requests": {"cpu": "10m"}}
    container = main(
        "exec sleep 600",
        env=[
            {"name": "UID_", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
            {
                "name": "MEM",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "BOTH", "value": "$(KEY)-$(IP)"},
        ],
        envFrom=[{"configMapRef": {"name": "map"}}],
        resources=resources,
        workingDir="/work",
        volumeMounts=[
            {"name": "keys", "mountPath": "/keys"},
            {"name": "map", "mountPath": "/map", "readOnly": True},
            {"name": "disk", "mountPath": "/disk"},
            {"name": "memory", "mountPath": "/memory"},
            {"name": "labels", "mountPath": "/labels"},
            {"name": "disk", "mountPath": "/sub", "subPath": "inner"},
            {"name": "claim", "mountPath": "/claim"},
        ],
        securityContext={
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "map"},
        "data": {"FROM_MAP": "yes"},
    }
    pods.apply(
        secret("keys", k="v1"),
        config,
        claim,
        pod(
            "rich",
            container,
            securityContext={
                "runAsNonRoot": True,
                "fsGroup": 4000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            volumes=[
                {"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "k", "path": "deep/k"}]}},
                {"name": "map", "configMap": {"name": "map"}},
                {"name": "disk", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {
                    "name": "labels",
                    "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]},
                },
                {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
            ],
        ),
    )
    pods.ready("rich")
    status = pods.get("pod", "rich")
    uid, ip, node = status["metadata"]["uid"], status["status"]["podIP"], status["spec"]["nodeName"]
    printed = pods.sh("rich", "echo $UID_ $IP $NODE $KEY $MEM $BOTH $FROM_MAP; pwd; id -u; id -G; hostname")
    assert printed.split() == [
        uid,
        ip,
        node,
        "v1",
        "64",
        f"v1-{ip}",
        "yes",
        "/work",
        "65532",
        "0",  # a kubelet takes the uid from the image and leaves its group out
        "4000",
        "rich",
    ]
    assert pods.sh("rich", "cat /keys/deep/k /labels/l; stat -c %T -f /memory; stat -c %a:%g /disk") == (
        'v1app="rich"tmpfs\n2777:4000\n'
    )
    assert pods.sh(
        "rich", "echo 1 > /sub/x; cat /disk/inner/x; echo 2 > /claim/x; grep CapBnd /proc/1/status"
    ) == ("1\nCapBnd:\t0000000000000000\n")
    for place in ("/x", "/map/x", "/keys/x", "/proc/sys/kernel/hostname"):
        with pytest.raises(KubectlError):
            pods.sh("rich", f"echo 1 > {place}")
    assert "v1" in pods.sh("rich", "cat /proc/1/environ")
    # Nothing of the machine's processes is to be seen.
    assert int(pods.sh("rich", "ls /proc | grep -c '^[0-9]*$'")) < 8

    pods.apply(secret("keys", k="v2"))
    # A kubelet looks at its pods from time to time: this one every ten seconds, once a minute by default.
    eventually(lambda: pods.sh("rich", "cat /keys/deep/k"), "v2", seconds=200)


def test_a_pods_token_is_known_to_the_api_server(pods: Pods) -> None:
    script = (
        "import json, os, ssl, urllib.request\n"
        "folder = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "host = os.environ['KUBERNETES_SERVICE_HOST']\n"
        "token = open(folder + 'token').read()\n"
        "headers = {'Authorization': f'Bearer {token}', 'Content-Type': 'application/json'}\n"
        "asked = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}\n"
        "url = f'https://{host}/apis/authentication.k8s.io/v1/selfsubjectreviews'\n"
        "request = urllib.request.Request(url, json.dumps(asked).encode(), headers)\n"
        "trust = ssl.create_default_context(cafile=folder + 'ca.crt')\n"
        "answer = urllib.request.urlopen(request, context=trust)\n"
        "print(json.load(answer)['status']['userInfo']['username'], open(folder + 'namespace').read())\n"
    )
    container = {"name": "main", "image": IMAGE, "command": ["python", "-c", script]}
    pods.apply(pod("asks", container, restartPolicy="Never"))
    eventually(lambda: pods.phase("asks"), "Succeeded")
    name = pods.namespace
    assert pods.kubectl("logs", "asks").split() == [f"system:serviceaccount:{name}:default", name]


def test_probes_gate_traffic_restart_and_wait_for_a_slow_start(pods: Pods) -> None:
    def probe(command: str, **timing: int) -> dict[str, Any]:
        # A probe that is slow is no failure here: one of these ends a container at its first.
        return {
            "exec": {"command": ["sh", "-c", command]},
            "periodSeconds": 1,
            "timeoutSeconds": 20,
            **timing,
        }

    pods.apply(
        pod("gated", main("exec sleep 600", readinessProbe=probe("test -e /tmp/go", failureThreshold=1))),
        pod(
            "dying",
            main(
                "trap 'exit 0' TERM; touch /tmp/up; sleep 600 & wait",
                readinessProbe=probe("test -e /tmp/up"),
                livenessProbe=probe("test ! -e /tmp/ill", failureThreshold=1),
            ),
            terminationGracePeriodSeconds=20,
        ),
        pod(
            "slow",
            main(
                "sleep 3; touch /tmp/up; exec sleep 600",
                startupProbe=probe("test -e /tmp/up", failureThreshold=30),
                livenessProbe=probe("test -e /tmp/up", failureThreshold=1),
            ),
        ),
        pod("tcp", main(WEB, readinessProbe={"tcpSocket": {"port": 8000}, "periodSeconds": 1})),
    )
    eventually(lambda: "running" in pods.state("gated"))
    condition = pods.get("pod", "gated")["status"]["conditions"]
    assert {c["type"]: c["status"] for c in condition}["Ready"] == "False"
    pods.sh("gated", "touch /tmp/go")
    pods.ready("gated")
    pods.sh("gated", "rm /tmp/go")
    pods.kubectl("wait", "--for=condition=Ready=False", "pod/gated", "--timeout=60s")

    pods.ready("tcp")
    pods.ready("dying")
    pods.sh("dying", "touch /tmp/ill")
    status = eventually(
        lambda: pods.get("pod", "dying")["status"]["containerStatuses"][0], lambda s: s["restartCount"] == 1
    )
    assert status["lastState"]["terminated"]["exitCode"] == 0
    pods.ready("slow")
    assert pods.get("pod", "slow")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_pod_that_a_controller_marked_unready_is_ready_again_when_its_node_writes_its_status(
    pods: Pods,
) -> None:
    pods.apply(pod("called", main("exec sleep 60")))
    pods.ready("called")
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    pods.kubectl("patch", "pod", "called", "--subresource=status", "-p", json.dumps(unready))
    pods.ready("called")


def test_the_status_gives_the_reason_why_a_container_does_not_run(pods: Pods) -> None:
    needs = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "later", "key": "k"}}}
    pods.apply(
        pod("crashes", main("echo run; echo why > /dev/termination-log; exit 3")),
        pod("no-image", {"name": "main", "image": "registry.devcluster.local/none:1"}),
        pod("no-secret", main("exec sleep 60", env=[needs])),
        pod("no-volume", main("exec sleep 60", volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            volumes=[{"name": "v", "secret": {"secretName": "later"}}]),
        pod("root", main("true", securityContext={"runAsUser": 0, "runAsNonRoot": True})),
        pod("no-program", {"name": "main", "image": IMAGE, "command": ["/none"]}, restartPolicy="Never"),
    )  # fmt: skip

    def crashed() -> Any:
        [status] = pods.get("pod", "crashes")["status"].get("containerStatuses", [{"state": {}}])
        return status if status["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff" else None

    status = eventually(crashed)
    # The first back-off may be over before a busy machine shows it; then this is the second one.
    assert status["restartCount"] >= 1
    seconds = 10 * 2 ** (status["restartCount"] - 1)
    assert f"back-off {seconds}s restarting failed container=main" in status["state"]["waiting"]["message"]
    assert (status["lastState"]["terminated"]["exitCode"], status["lastState"]["terminated"]["reason"]) == (
        3,
        "Error",
    )
    assert status["lastState"]["terminated"]["message"] == "why\n"
    assert pods.phase("crashes") == "Running"
    assert pods.kubectl("logs", "crashes", "--previous") == "run\n"

    eventually(lambda: pods.waiting("no-image"), lambda why: why in ("ErrImagePull", "ImagePullBackOff"))
    assert "registry.devcluster.local/none:1" in pods.state("no-image")["waiting"]["message"]
    eventually(lambda: pods.waiting("no-image"), "ImagePullBackOff")
    eventually(lambda: pods.waiting("no-secret"), "CreateContainerConfigError")
    assert pods.state("no-secret")["waiting"]["message"] == 'secret "later" not found'
    eventually(lambda: pods.waiting("no-volume"), "ContainerCreating")
    eventually(lambda: pods.waiting("root"), "CreateContainerConfigError")
    eventually(lambda: pods.phase("no-program"), "Failed")
    assert pods.state("no-program")["terminated"]["reason"] == "StartError"

    pods.apply(secret("later", k="v"))
    pods.ready("no-secret")
    pods.ready("no-volume")


def test_jobs_end_as_their_pods_do_and_init_containers_go_first(pods: Pods) -> None:
    def job(name: str, *, inits: list[dict[str, Any]], script: str) -> dict[str, Any]:
        mounts = [{"name": "d", "mountPath": "/d"}]
        spec = pod(name, main(script, volumeMounts=mounts), restartPolicy="Never",
            initContainers=[{**init, "volumeMounts": mounts} for init in inits],
            volumes=[{"name": "d", "emptyDir": {}}])["spec"]  # fmt: skip
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"spec": spec}}}  # fmt: skip

    first = {**main("echo one >> /d/x"), "name": "first"}
    second = {**main("echo two >> /d/x"), "name": "second"}
    beside = {**main("echo side >> /d/x; exec sleep 60"), "name": "beside", "restartPolicy": "Always"}
    pods.apply(
        job("works", inits=[first, second], script="cat /d/x"),
        job("beside", inits=[beside], script="until test -s /d/x; do sleep 0.1; done; cat /d/x"),
        job("fails", inits=[], script="exit 4"),
        job("fails-early", inits=[{**first, "command": ["false"]}], script="true"),
    )
    for name in ("works", "beside"):
        pods.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=90s")
    for name in ("fails", "fails-early"):
        pods.kubectl("wait", "--for=condition=Failed", f"job/{name}", "--timeout=90s")
    assert pods.kubectl("logs", "job/works", "-c", "main") == "one\ntwo\n"
    assert pods.kubectl("logs", "job/beside", "-c", "main") == "side\n"


def test_an_evicted_pod_is_replaced(pods: Pods) -> None:
    pods.apply(deployment("web", 1, main("trap 'exit 0' TERM; sleep 60 & wait")))
    pods.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    (before,) = pods.get("pods")["items"]
    name = before["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": pods.namespace},
    }
    path = f"/api/v1/namespaces/{pods.namespace}/pods/{name}/eviction"
    pods.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    eventually(lambda: pods.gone(name))
    pods.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
