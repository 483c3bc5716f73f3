{{/* The chart's name in labels. */}}
{{- define "warmfleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 36 | trimSuffix "-" -}}
{{- end -}}

{{/*
Prefix of all object names. Release names may hold dots and begin with a digit, names of Services may not; what is
longer than 36 characters ends with a hash, so that two long releases of one namespace stay apart.
*/}}
{{- define "warmfleet.fullname" -}}
{{- $name := include "warmfleet.name" . -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full = $full | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $full -}}
{{- $full = printf "wf-%s" $full -}}
{{- end -}}
{{- if gt (len $full) 36 -}}
{{- $full = printf "%s-%s" ($full | trunc 27 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "warmfleet.operator.fullname" -}}{{ include "warmfleet.fullname" . }}-operator{{- end -}}
{{- define "warmfleet.router.fullname" -}}{{ include "warmfleet.fullname" . }}-router{{- end -}}

{{/* Names of objects that all namespaces share carry the release's namespace. */}}
{{- define "warmfleet.clusterName" -}}
{{- $full := printf "%s-%s" .Release.Namespace (include "warmfleet.fullname" .) -}}
{{- $full -}}
{{- end -}}

{{- define "warmfleet.operator.serviceAccountName" -}}
{{- with .Values.operator.serviceAccount -}}
{{- default (ternary (include "warmfleet.operator.fullname" $) "default" .create) .name -}}
{{- end -}}
{{- end -}}

{{- define "warmfleet.router.serviceAccountName" -}}
{{- with .Values.router.serviceAccount -}}
{{- default (ternary (include "warmfleet.router.fullname" $) "default" .create) .name -}}
{{- end -}}
{{- end -}}

{{- define "warmfleet.rootSecretName" -}}
{{- default (printf "%s-root-keys" (include "warmfleet.fullname" .)) .Values.rootKeys.existingSecret -}}
{{- end -}}

{{- define "warmfleet.leaseName" -}}{{ include "warmfleet.operator.fullname" . }}{{- end -}}

{{/* Namespaces with ModelDeployments, as a JSON list; empty = all. */}}
{{- define "warmfleet.namespaces" -}}
{{- if eq .Values.rbac.scope "Cluster" -}}
[]
{{- else -}}
{{- prepend .Values.rbac.namespaces .Release.Namespace | uniq | toJson -}}
{{- end -}}
{{- end -}}
