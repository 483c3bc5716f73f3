{{/* Selectors are immutable: these never change. Call with (dict "root" $ "component" NAME). */}}
{{- define "warmfleet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warmfleet.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object of the release. Call as above; component may be empty. */}}
{{- define "warmfleet.labels" -}}
{{- $labels := dict
  "app.kubernetes.io/name" (include "warmfleet.name" .root)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_")
  "app.kubernetes.io/managed-by" .root.Release.Service
  "app.kubernetes.io/part-of" "warmfleet"
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_")) -}}
{{- with .component -}}
{{- $_ := set $labels "app.kubernetes.io/component" . -}}
{{- end -}}
{{- toYaml (merge $labels .root.Values.commonLabels) -}}
{{- end -}}

{{/* `annotations:` of an object, if there are any. Call with (dict "root" $ "annotations" MAP). */}}
{{- define "warmfleet.annotations" -}}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Labels of the pods of a component. Call with (dict "root" $ "component" NAME "podLabels" MAP). */}}
{{- define "warmfleet.podLabels" -}}
{{- $own := merge (include "warmfleet.labels" . | fromYaml) (dict "warmfleet.dev/component" .component) -}}
{{- toYaml (merge $own .podLabels) -}}
{{- end -}}
