# Five images from one tree: operator, router, worker-cpu, worker-cuda, worker-vllm. `make images REGISTRY=...` builds
# them, the last one on request; docs/how-to/images.md explains the arguments. Each holds what its component imports and nothing else, every file
# checked against its hash, and runs as any user on a read-only root.

# The base by tag or, better for a release, by digest: PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# The installer: uv, itself installed by pip.
FROM ${PYTHON_IMAGE} AS tools
RUN python -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: PYTHON_IMAGE: Python 3.11 or newer is needed, this one has " + sys.version)'
# Another index or a mirror: passed to pip and uv as their own variables, not kept in the images.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
# Certificates in PEM beside the base's, for a mirror or a proxy with an authority of its own: CA_FILE of `make images`.
ARG EXTRA_CA_PEM=""
RUN { cat /etc/ssl/certs/ca-certificates.crt || true; echo "${EXTRA_CA_PEM}"; } > /opt/authorities.pem
ENV PIP_CERT=/opt/authorities.pem \
    SSL_CERT_FILE=/opt/authorities.pem \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1
WORKDIR /src
COPY constraints-uv.txt ./
RUN python -m venv /opt/tools
RUN /opt/tools/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r constraints-uv.txt

# This tree, in a folder and a layer of its own: a change of it rebuilds a few megabytes. It holds Python only, so all
# components get the same.
FROM tools AS code
COPY images/requirements/build.txt images/requirements/
RUN /opt/tools/bin/uv pip install --python /opt/tools/bin/python --require-hashes -r images/requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY contracts contracts
COPY runtime runtime
COPY operator operator
COPY router router
COPY worker worker
COPY devcluster/warmfleet_devcluster devcluster/warmfleet_devcluster
COPY simulator simulator
COPY cli cli
RUN /opt/tools/bin/uv build --wheel --no-build-isolation --python /opt/tools/bin/python --out-dir /dist .
RUN python -m zipfile -e /dist/*.whl /opt/code
RUN python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/code

# The same with the worker's native step, compiled: no compiler is in the image that runs it.
FROM tools AS native-code
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY images/compile_native_step.py images/
COPY --from=code /opt/code /opt/code
RUN PYTHONPATH=/opt/code /opt/tools/bin/python images/compile_native_step.py

# Dependencies, per component. images/finish_environment.py has them find the code, and compiles them.
# hf-xet (11 MB) speeds up downloads from the hub, which only workers make.
FROM tools AS operator-venv
COPY images/requirements/operator.txt images/requirements/
COPY images/finish_environment.py images/
RUN python -m venv --without-pip /opt/venv
RUN /opt/tools/bin/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r images/requirements/operator.txt
RUN /opt/tools/bin/uv pip uninstall --python /opt/venv/bin/python hf-xet
RUN /opt/venv/bin/python images/finish_environment.py /opt/code

FROM tools AS router-venv
COPY images/requirements/router.txt images/requirements/
COPY images/finish_environment.py images/
RUN python -m venv --without-pip /opt/venv
RUN /opt/tools/bin/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r images/requirements/router.txt
RUN /opt/tools/bin/uv pip uninstall --python /opt/venv/bin/python hf-xet
RUN /opt/venv/bin/python images/finish_environment.py /opt/code

# Workers keep pip, which fetches models of the catalog.
FROM tools AS worker-cuda-venv
COPY images/requirements/worker.txt images/requirements/
COPY images/finish_environment.py images/
RUN python -m venv /opt/venv
RUN /opt/tools/bin/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r images/requirements/worker.txt
RUN /opt/venv/bin/python images/finish_environment.py /opt/code

FROM tools AS worker-cpu-venv
# Empty = no torch on x86-64, where the native step computes; pinned = the torch of worker-cuda; or the URL of a wheel
# without CUDA, with its hash: https://...whl#sha256=...
ARG TORCH_CPU_WHEEL=""
COPY images/requirements/worker.txt images/requirements/
COPY images/cpu_requirements.py images/finish_environment.py images/
RUN python -m venv /opt/venv
RUN python images/cpu_requirements.py images/requirements/worker.txt "${TORCH_CPU_WHEEL}" > /tmp/worker-cpu.txt
RUN /opt/tools/bin/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r /tmp/worker-cpu.txt
RUN /opt/venv/bin/python images/finish_environment.py /opt/code

# A model of the catalog to bake in; empty = none, pods fetch what they serve.
FROM worker-cpu-venv AS baked-model
ARG CATALOG_MODEL=""
COPY images/bake_model.py images/
COPY --from=code /opt/code /opt/code
RUN /opt/venv/bin/python images/bake_model.py /opt/warmfleet "${CATALOG_MODEL}"

# The server beside vLLM: it computes nothing, so it needs no torch.
FROM tools AS worker-vllm-venv
COPY images/requirements/worker.txt images/requirements/
COPY images/cpu_requirements.py images/finish_environment.py images/
RUN python -m venv /opt/venv
RUN python images/cpu_requirements.py images/requirements/worker.txt none > /tmp/worker-vllm.txt
RUN /opt/tools/bin/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r /tmp/worker-vllm.txt
RUN /opt/venv/bin/python images/finish_environment.py /opt/code

# vLLM pins its own torch, so the engine process has an environment of its own, as `make vllm` makes it.
FROM tools AS vllm-venv
COPY constraints-vllm.txt ./
COPY images/finish_environment.py images/
RUN python -m venv --without-pip /opt/vllm
RUN /opt/tools/bin/uv pip install --python /opt/vllm/bin/python --no-deps --require-hashes -r constraints-vllm.txt
RUN /opt/vllm/bin/python images/finish_environment.py /opt/code

# Common to all images. Base images have no compiled modules, and nothing can be written at run time.
FROM ${PYTHON_IMAGE} AS runtime
RUN python -m compileall -q -j 0 --invalidation-mode unchecked-hash "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# images/build.py adds version and revision: a label that changes with every commit would rebuild what follows it.
LABEL org.opencontainers.image.vendor="warmfleet maintainers" \
      org.opencontainers.image.licenses="Apache-2.0"
# LOGNAME: getpass reads it before the user database, which has no entry for an arbitrary uid.
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/nonexistent \
    LOGNAME=warmfleet \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532

FROM runtime AS worker-cuda
LABEL org.opencontainers.image.title="warmfleet worker (CUDA)" \
      org.opencontainers.image.description="Engine and server of one model, on NVIDIA devices."
# Triton compiles a launcher per kernel with the system's C compiler; Python's headers are in the base image.
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 65532:65532
ENV TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    TRITON_CACHE_DIR=/tmp/triton \
    WARMFLEET_IMAGE_HOME=/opt/warmfleet
COPY --from=worker-cuda-venv /opt/venv /opt/venv
COPY --from=native-code /opt/code /opt/code
EXPOSE 8000
ENTRYPOINT ["python", "-m", "warmfleet_worker"]

FROM runtime AS worker-vllm
LABEL org.opencontainers.image.title="warmfleet worker (vLLM)" \
      org.opencontainers.image.description="vLLM as the engine of one model, on NVIDIA devices, and warmfleet's server."
# Triton and TorchInductor compile with the system's compilers.
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends g++ gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 65532:65532
ENV TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    TRITON_CACHE_DIR=/tmp/triton \
    VLLM_CACHE_ROOT=/tmp/vllm \
    WARMFLEET_IMAGE_HOME=/opt/warmfleet \
    WARMFLEET_VLLM_PYTHON=/opt/vllm/bin/python
COPY --from=worker-vllm-venv /opt/venv /opt/venv
COPY --from=vllm-venv /opt/vllm /opt/vllm
COPY --from=code /opt/code /opt/code
EXPOSE 8000
ENTRYPOINT ["python", "-m", "warmfleet_worker"]

FROM runtime AS worker-cpu
LABEL org.opencontainers.image.title="warmfleet worker (CPU)" \
      org.opencontainers.image.description="Engine and server of one model, on CPU cores."
ENV TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    WARMFLEET_IMAGE_HOME=/opt/warmfleet
COPY --from=worker-cpu-venv /opt/venv /opt/venv
COPY --from=baked-model /opt/warmfleet /opt/warmfleet
COPY --from=native-code /opt/code /opt/code
EXPOSE 8000
ENTRYPOINT ["python", "-m", "warmfleet_worker"]

FROM runtime AS router
LABEL org.opencontainers.image.title="warmfleet router" \
      org.opencontainers.image.description="The address of a fleet: sends each request where it costs least."
COPY --from=router-venv /opt/venv /opt/venv
COPY --from=code /opt/code /opt/code
EXPOSE 8080
ENTRYPOINT ["python", "-m", "warmfleet_router"]

FROM runtime AS operator
LABEL org.opencontainers.image.title="warmfleet operator" \
      org.opencontainers.image.description="Reconciles ModelDeployments into workers."
COPY --from=operator-venv /opt/venv /opt/venv
COPY --from=code /opt/code /opt/code
EXPOSE 8081 8082
ENTRYPOINT ["python", "-m", "warmfleet_operator"]
