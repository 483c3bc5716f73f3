{{/*
A role and its binding, in one namespace or, without "namespace", in all.
Call with (dict "root" $ "name" NAME "namespace" NAMESPACE "labels" TEXT "rules" TEXT "subject" MAP).
*/}}
{{- define "warmfleet.grant" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- .labels | nindent 4 }}
  {{- include "warmfleet.annotations" (dict "root" .root) | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- .labels | nindent 4 }}
  {{- include "warmfleet.annotations" (dict "root" .root) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  - {{ toJson .subject }}
{{ end -}}
