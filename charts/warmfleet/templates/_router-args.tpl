{{/* The router's flags; router/warmfleet_router/settings.py explains each one. */}}
{{- define "warmfleet.router.args" -}}
- --host=0.0.0.0
- --port=8080
- --discovery=kubernetes
{{- $namespaces := include "warmfleet.namespaces" . | fromJsonArray }}
{{- range $namespaces }}
- --namespace={{ . }}
{{- else }}
- --namespace=all
{{- end }}
- --root-keys=/etc/warmfleet/root-keys
- --router-id=$(WARMFLEET_POD_UID)
- --linger-seconds={{ .Values.router.lingerSeconds }}
- --drain-seconds={{ .Values.router.drainSeconds }}
{{- with .Values.router.auth }}
{{- if eq .mode "Keys" }}
- --keys-file=/etc/warmfleet/keys/keys.json
{{- if .openMetrics }}
- --open-metrics
{{- end }}
{{- else }}
- --allow-anonymous
{{- end }}
{{- end }}
{{- range .Values.router.corsOrigins }}
- {{ printf "--cors-origin=%s" . | quote }}
{{- end }}
{{- with .Values.router.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}
