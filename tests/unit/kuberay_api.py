"""The fields of KubeRay's API (``ray.io/v1``, release 1.6.2) and of Kubernetes that our manifests use.

A JSON schema: an unknown field, or a known one of another type, is refused. Stricter than the API where we
are: a secret is only ever referred to, and labels are the group's and not in ``rayStartParams``.
"""

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}


def _object(*required: str, **fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


_SECRET_KEY = _object("secretKeyRef", secretKeyRef=_object("name", "key", name=_TEXT, key=_TEXT))

_CONTAINER = _object(
    "name", "image", "securityContext", "resources",
    name=_TEXT,
    image=_TEXT,
    securityContext=_object(
        "allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities",
        allowPrivilegeEscalation={"const": False},
        readOnlyRootFilesystem={"const": True},
        capabilities=_object("drop", drop={"const": ["ALL"]}),
    ),
    env=_list(_object("name", name=_TEXT, value=_TEXT, valueFrom=_SECRET_KEY)),
    envFrom=_list(_object("secretRef", secretRef=_object("name", name=_TEXT))),
    ports=_list(_object("name", "containerPort", name=_TEXT, containerPort=_COUNT)),
    resources=_object("requests", "limits", requests=_TEXTS, limits=_TEXTS),
    volumeMounts=_list(_object("name", "mountPath", name=_TEXT, mountPath=_TEXT)),
)  # fmt: skip

_POD = _object(
    "containers", "securityContext", "automountServiceAccountToken",
    automountServiceAccountToken={"const": False},
    terminationGracePeriodSeconds=_COUNT,
    tolerations=_list(
        _object(
            "key", "operator", "effect",
            key=_TEXT, operator=_one_of("Exists", "Equal"), effect=_one_of("NoSchedule", "NoExecute"),
        )
    ),
    securityContext=_object(
        "runAsNonRoot", "runAsUser", "seccompProfile",
        runAsNonRoot={"const": True},
        runAsUser={"type": "integer", "minimum": 1},
        runAsGroup=_COUNT,
        fsGroup=_COUNT,
        supplementalGroups=_list(_COUNT),
        # Nobody does without a filter of system calls.
        seccompProfile={
            "oneOf": [
                _object("type", type={"const": "RuntimeDefault"}),
                _object("type", "localhostProfile", type={"const": "Localhost"}, localhostProfile=_TEXT),
            ]
        },
    ),
    containers=_list(_CONTAINER),
    volumes=_list(
        _object(
            "name", "emptyDir",
            name=_TEXT, emptyDir=_object(medium={"const": "Memory"}, sizeLimit=_TEXT),
        )
    ),
)  # fmt: skip

_TEMPLATE = _object("metadata", "spec", metadata=_object("labels", labels=_TEXTS), spec=_POD)

# Values are text, also where they are numbers.
_START_PARAMS: Schema = {**_TEXTS, "propertyNames": {"not": {"enum": ["labels"]}}}

_HEAD = _object(
    "rayStartParams", "template",
    serviceType=_one_of("ClusterIP"),
    rayStartParams=_START_PARAMS,
    template=_TEMPLATE,
)  # fmt: skip

_WORKERS = _object(
    "groupName", "replicas", "minReplicas", "maxReplicas", "labels", "rayStartParams", "template",
    groupName=_TEXT,
    replicas=_COUNT,
    minReplicas=_COUNT,
    maxReplicas=_COUNT,
    labels=_TEXTS,
    rayStartParams=_START_PARAMS,
    template=_TEMPLATE,
)  # fmt: skip

_CLUSTER_SPEC = _object(
    "rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs",
    rayVersion=_TEXT,
    authOptions=_object("mode", "secretName", mode={"const": "token"}, secretName=_TEXT),
    gcsFaultToleranceOptions=_object(
        "redisAddress", "redisPassword",
        redisAddress={"type": "string", "pattern": "^rediss?://[^@]+$"},
        redisPassword=_object("valueFrom", valueFrom=_SECRET_KEY),
    ),
    headGroupSpec=_HEAD,
    workerGroupSpecs=_list(_WORKERS),
)  # fmt: skip


def _resource(api: str, kind: str, spec: Schema) -> Schema:
    return _object(
        "apiVersion", "kind", "metadata", "spec",
        apiVersion={"const": api}, kind={"const": kind}, metadata=_object("name", name=_TEXT), spec=spec,
    )  # fmt: skip


RAY_CLUSTER = _resource("ray.io/v1", "RayCluster", _CLUSTER_SPEC)

RAY_JOB = _resource(
    "ray.io/v1",
    "RayJob",
    _object(
        "entrypoint", "rayClusterSpec",
        entrypoint=_TEXT,
        submissionMode=_one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
        backoffLimit=_COUNT,
        shutdownAfterJobFinishes=_FLAG,
        ttlSecondsAfterFinished=_COUNT,
        rayClusterSpec=_CLUSTER_SPEC,
    ),
)  # fmt: skip

_PODS = _object("matchLabels", matchLabels=_TEXTS)

NETWORK_POLICY = _resource(
    "networking.k8s.io/v1",
    "NetworkPolicy",
    _object(
        "podSelector", "policyTypes", "ingress",
        podSelector=_PODS,
        policyTypes={"const": ["Ingress"]},
        ingress=_list(
            _object(
                "from",
                **{"from": _list(_object(podSelector=_PODS, namespaceSelector=_PODS))},
                ports=_list(_object("port", port=_COUNT, protocol=_one_of("TCP"))),
            )
        ),
    ),
)  # fmt: skip

SCHEMAS = {"RayCluster": RAY_CLUSTER, "RayJob": RAY_JOB, "NetworkPolicy": NETWORK_POLICY}
