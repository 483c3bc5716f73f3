{{/* The operator's flags; operator/warmfleet_operator/settings.py explains each one. */}}
{{- define "warmfleet.operator.args" -}}
{{- $lease := .Values.operator.lease -}}
{{- if not (and (lt ($lease.retrySeconds | int) ($lease.renewSeconds | int)) (lt ($lease.renewSeconds | int) ($lease.durationSeconds | int))) -}}
{{- fail "operator.lease: retrySeconds < renewSeconds < durationSeconds must hold" -}}
{{- end -}}
- --release-namespace={{ .Release.Namespace }}
- --release-name={{ .Release.Name }}
{{- range .Values.operator.adoptReleases }}
- --adopt-release={{ . }}
{{- end }}
{{- range include "warmfleet.namespaces" . | fromJsonArray }}
- --namespace={{ . }}
{{- end }}
- --worker-cpu-image={{ include "warmfleet.image" (dict "root" $ "image" .Values.images.workerCpu) }}
- --worker-cuda-image={{ include "warmfleet.image" (dict "root" $ "image" .Values.images.workerCuda) }}
- --worker-vllm-image={{ include "warmfleet.image" (dict "root" $ "image" .Values.images.workerVllm) }}
- --image-pull-policy={{ .Values.images.pullPolicy }}
{{- range .Values.imagePullSecrets }}
- --image-pull-secret={{ .name }}
{{- end }}
- {{ printf "--default-resources=%s" (include "warmfleet.resources" .Values.workers) | quote }}
- --root-secret-name={{ include "warmfleet.rootSecretName" . }}
{{- if .Values.rootKeys.existingSecret }}
- --no-create-root-secret
{{- end }}
- --router-service-name={{ include "warmfleet.router.fullname" . }}
- --router-service-port={{ .Values.router.service.port }}
- --router-port=8080
- {{ printf "--router-pod-labels=%s" (include "warmfleet.selectorLabels" (dict "root" $ "component" "router") | fromYaml | toJson) | quote }}
{{- with .Values.modelFetch }}
{{- with .hubEndpoint }}
- --hub-endpoint={{ . }}
{{- end }}
{{- if .offline }}
- --hub-offline
{{- end }}
{{- if not .resolveRevisions }}
- --no-resolve-revisions
{{- end }}
{{- with .httpProxy }}
- --http-proxy={{ . }}
{{- end }}
{{- with .httpsProxy }}
- --https-proxy={{ . }}
{{- end }}
{{- with .noProxy }}
- {{ printf "--no-proxy=%s" . | quote }}
{{- end }}
{{- with .caBundleConfigMap }}
- --ca-bundle-config-map={{ . }}
{{- end }}
{{- if include "warmfleet.operator.hubBundle" $ }}
- --hub-ca-file=/etc/warmfleet/ca/ca.crt
{{- end }}
{{- end }}
{{- if .Values.networkPolicies.enabled }}
{{- range .Values.networkPolicies.dns.ports }}
- --dns-port={{ . }}
{{- end }}
{{- with .Values.networkPolicies.dns.peers }}
- {{ printf "--dns-peers=%s" (toJson .) | quote }}
{{- end }}
{{- end }}
{{- if not .Values.networkPolicies.enabled }}
- --no-network-policies
{{- else if or .Values.networkPolicies.scrapers .Values.monitoring.podMonitor.enabled }}
- {{ printf "--worker-scrapers=%s" (.Values.networkPolicies.scrapers | toJson) | quote }}
{{- end }}
- --lease-name={{ include "warmfleet.leaseName" . }}
- --lease-duration-seconds={{ $lease.durationSeconds }}
- --lease-renew-seconds={{ $lease.renewSeconds }}
- --lease-retry-seconds={{ $lease.retrySeconds }}
- --resync-seconds={{ .Values.operator.resyncSeconds }}
- --log-level={{ .Values.operator.logLevel }}
{{- with .Values.operator.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* ConfigMap with the certificates that the operator trusts for the hub; empty if it asks no hub or has none. */}}
{{- define "warmfleet.operator.hubBundle" -}}
{{- if and .Values.modelFetch.resolveRevisions (not .Values.modelFetch.offline) -}}
{{ .Values.modelFetch.caBundleConfigMap }}
{{- end -}}
{{- end -}}
