{{/* Egress to the cluster's DNS. */}}
{{- define "warmfleet.egress.dns" -}}
# DNS.
- ports:
    {{- range .Values.networkPolicies.dns.ports }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicies.dns.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Egress to the API server and to DNS. */}}
{{- define "warmfleet.egress.cluster" -}}
# The API server.
- ports:
    {{- range .Values.networkPolicies.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicies.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . }}
    {{- end }}
  {{- end }}
{{ include "warmfleet.egress.dns" . }}
{{- end -}}
