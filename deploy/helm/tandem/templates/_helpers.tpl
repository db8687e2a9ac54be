{{- define "tandem.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tandem.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "tandem.fullname" .) -}}
{{- end -}}

{{/* How many replicas there may be. */}}
{{- define "tandem.mostReplicas" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.maxReplicas }}{{ else }}{{ .Values.replicaCount }}{{ end -}}
{{- end -}}

{{/* The host of publicUrl, with its port. */}}
{{- define "tandem.host" -}}
{{- get (urlParse .Values.publicUrl) "host" -}}
{{- end -}}

{{/*
The pause before the signal, the stop, and what closing the pools may take after it.
*/}}
{{- define "tandem.gracePeriod" -}}
{{- add .Values.stop.preStopSeconds .Values.stop.shutdownTimeoutSeconds 10 -}}
{{- end -}}

{{- define "tandem.image" -}}
{{- printf "%s:%s" .Values.image.repository .Values.image.tag | quote -}}
{{- end -}}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "tandem.env" -}}
- name: TANDEM_ADDR
  value: ":8080"
- name: TANDEM_NODE
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: TANDEM_PUBLIC_URL
  value: {{ .Values.publicUrl | quote }}
- name: TANDEM_DRAIN_GRACE
  value: {{ printf "%ds" (int .Values.stop.drainGraceSeconds) }}
- name: TANDEM_SHUTDOWN_TIMEOUT
  value: {{ printf "%ds" (int .Values.stop.shutdownTimeoutSeconds) }}
{{- if eq .Values.driver "sqlite" }}
- name: TANDEM_DATABASE_URL
  value: sqlite:/data/tandem.db
{{- else if eq .Values.driver "memory" }}
- name: TANDEM_DATABASE_URL
  value: "memory:"
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- range $name, $secret := .Values.secrets }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name }}
      key: {{ $secret.key }}
{{- end }}
{{- end -}}

{{/* What values.schema.json can't say, in a sentence each. */}}
{{- define "tandem.check" -}}
{{- $v := .Values -}}
{{- $several := gt (include "tandem.mostReplicas" . | int) 1 -}}
{{- if or (not $v.image.repository) (not $v.image.tag) -}}
{{- fail "image.repository and image.tag must name the image: build one with deploy/docker/Dockerfile and push it." -}}
{{- end -}}
{{- if not $v.publicUrl -}}
{{- fail "publicUrl must be set to where browsers find the program, such as https://chat.example.com." -}}
{{- end -}}
{{- if and $several (ne $v.driver "pg") $v.autoscaling.enabled -}}
{{- fail (printf "autoscaling.enabled is true and driver is %s: several replicas need PostgreSQL, so set driver to pg or autoscaling.enabled to false." $v.driver) -}}
{{- end -}}
{{- if and $several (ne $v.driver "pg") -}}
{{- fail (printf "replicaCount is %d and driver is %s: several replicas need PostgreSQL, so set driver to pg or replicaCount to 1." (int $v.replicaCount) $v.driver) -}}
{{- end -}}
{{- if and (eq $v.driver "pg") (not (hasKey $v.secrets "TANDEM_DATABASE_URL")) -}}
{{- fail "secrets.TANDEM_DATABASE_URL must name the Secret, and the key in it, that holds postgres://USER:PASSWORD@HOST/DATABASE." -}}
{{- end -}}
{{- if ne $v.driver "pg" -}}
{{- range $name := list "TANDEM_DATABASE_URL" "TANDEM_LISTEN_URL" -}}
{{- if hasKey $v.secrets $name -}}
{{- fail (printf "secrets.%s is for driver pg, but driver is %s: remove it or set driver to pg." $name $v.driver) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas is %d: set it to autoscaling.minReplicas (%d) at least." (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- end -}}
{{- if ge (int $v.stop.drainGraceSeconds) (int $v.stop.shutdownTimeoutSeconds) -}}
{{- fail (printf "stop.drainGraceSeconds is %d: it must be shorter than stop.shutdownTimeoutSeconds (%d), which it is a part of." (int $v.stop.drainGraceSeconds) (int $v.stop.shutdownTimeoutSeconds)) -}}
{{- end -}}
{{- if and $v.migrateJob.enabled (ne $v.driver "pg") -}}
{{- fail (printf "migrateJob.enabled is true and driver is %s: only PostgreSQL can be migrated beside the replicas, so set migrateJob.enabled to false." $v.driver) -}}
{{- end -}}
{{- end -}}
