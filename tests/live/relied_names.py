"""Every private name of Ray that we rely on, by whom, and what must be so of it.

What a new version of Ray breaks says so by name, in ``tests/live/machines/test_ray_internals.py``.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name

import ray

from cluster.local_ray.timeouts import ACROSS_HOSTS

RAY = "cluster.ray_internals"
TRAIN = "jobs.launch.ray_train.train_internals"
TRAINER = "ray.train.v2.api.data_parallel_trainer.DataParallelTrainer"
V2 = "ray.train.v2._internal"
GROUP = f"{V2}.execution.worker_group"
CALLBACK = f"{V2}.execution.callback"
STAND_IN = "cluster.local_ray.agent_stand_in.PORTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relied:
    """What must be so of ``name`` for ``by``, a function or class of ours.

    We call it with so many arguments by ``position`` and these ``keywords``; its source ``says`` these words;
    it has this ``value``; ours, which Ray calls in its place, is ``replaced_by`` and takes the same.
    """

    name: str
    by: str
    position: int | None = None
    keywords: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    value: object = None
    replaced_by: str = ""

    @property
    def problem(self) -> str:
        """Empty where Ray is as we rely on."""
        what = self._difference()
        return f"Ray {ray.__version__}: {self.name} {what}; {self.by} relies on it" if what else ""

    def _difference(self) -> str:
        try:
            found = resolve_name(self.name)
        except (ImportError, AttributeError):
            return "is not there any more"
        if self.value is not None and found != self.value:
            return f"is {found!r}, expected {self.value!r}"
        if missing := [words for words in self.says if words not in inspect.getsource(found)]:
            return f"does not say {', '.join(map(repr, missing))} any more"
        if self.replaced_by and _parameters(found) != _parameters(resolve_name(self.replaced_by)):
            return f"takes ({', '.join(_parameters(found))}), not as {self.replaced_by} does"
        return self._refused(found)

    def _refused(self, found: object) -> str:
        if self.position is None:
            return ""
        assert callable(found)
        try:
            inspect.signature(found).bind(*[None] * self.position, **dict.fromkeys(self.keywords))
        except TypeError as error:
            return f"can't be called as before ({error})"
        return ""


def _parameters(found: object) -> list[str]:
    assert callable(found)
    return list(inspect.signature(found).parameters)


def variables() -> Iterator[Relied]:
    """Each is a constant of Ray's, from which its own code reads it."""
    constants = {
        f"{V2}.constants.WORKER_GROUP_START_TIMEOUT_S_ENV_VAR": "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S",
        f"{V2}.constants.METRICS_ENABLED_ENV_VAR": "RAY_TRAIN_METRICS_ENABLED",
        "ray.train.constants.RAY_TRAIN_ENABLE_STATE_TRACKING": "RAY_TRAIN_ENABLE_STATE_TRACKING",
        f"{V2}.constants.ENABLE_PREEMPTION_WATCHER_ENV_VAR": "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER",
        f"{V2}.constants.ENABLE_CONTROLLER_STRUCTURED_LOGGING_ENV_VAR": (
            "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING"
        ),
        f"{V2}.constants.ENABLE_WORKER_STRUCTURED_LOGGING_ENV_VAR": (
            "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING"
        ),
        f"{V2}.constants.ENABLE_PRINT_PATCH_ENV_VAR": "RAY_TRAIN_ENABLE_PRINT_PATCH",
        "ray.train.constants.RAY_CHDIR_TO_TRIAL_DIR": "RAY_CHDIR_TO_TRIAL_DIR",
        "ray._common.constants.RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR": (
            "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"
        ),
    }
    patience = {
        f"{V2}.constants.HEALTH_CHECK_INTERVAL_S_ENV_VAR": "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S",
        f"{V2}.constants.WORKER_HEALTH_CHECK_TIMEOUT_S_ENV_VAR": "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S",
        f"{V2}.constants.COLLECTIVE_TIMEOUT_S_ENV_VAR": "RAY_TRAIN_COLLECTIVE_TIMEOUT_S",
    }
    for name, value in constants.items():
        by = "start_timeout" if "START_TIMEOUT" in name else "without_extras"
        yield Relied(name=name, by=f"{TRAIN}.{by}", value=value)
    for name, value in patience.items():
        yield Relied(name=name, by="cluster.local_ray.timeouts.IN_TRAIN", value=value)
    for variable in ACROSS_HOSTS:
        option = variable.removeprefix("RAY_")
        yield Relied(name=f"ray._raylet.Config.{option}", by="cluster.local_ray.timeouts.ACROSS_HOSTS")


NAMES = (
    Relied(name="ray._private.state.state.get_draining_nodes", by=f"{RAY}.draining_nodes", position=0),
    Relied(name="ray._private.state.available_resources_per_node", by=f"{RAY}.free_resources", position=0),
    Relied(name="ray._private.services.canonicalize_bootstrap_address", by=f"{RAY}.head_address", position=1),
    Relied(name="ray._private.state.GlobalState", by=f"{RAY}.tables_of", position=0),
    Relied(name="ray._private.state.GlobalState._initialize_global_state", by=f"{RAY}.tables_of", position=2),
    Relied(name="ray._private.state.GlobalState.node_table", by=f"{RAY}.tables_of", position=1),
    Relied(name="ray._private.state.GlobalState.get_draining_nodes", by=f"{RAY}.tables_of", position=1),
    Relied(name="ray._private.state.GlobalState.disconnect", by=f"{RAY}.tables_of", position=1),
    Relied(
        name="ray._private.worker.shutdown",
        by=f"{RAY}.shut_down",
        says=("del global_worker.core_worker", "ray._private.state.state.disconnect()"),
    ),
    Relied(
        name="ray._raylet.GcsClientOptions.create",
        by=f"{RAY}.tables_of",
        position=2,
        keywords=("allow_cluster_id_nil", "fetch_cluster_id_if_nil"),
    ),
    # It tells no signature.
    Relied(name="ray._raylet.GcsClient", by=f"{RAY}.tables_of"),
    Relied(name="ray._raylet.InnerGcsClient.get_all_node_info", by=f"{RAY}.tables_of", position=1),
    Relied(
        name="ray._common.utils.get_ray_address_file",
        by=f"{RAY}.address_kept_in",
        position=1,
        says=('"ray_current_cluster"',),
    ),
    Relied(name="ray._private.worker._global_node", by=f"{RAY}.session_directory"),
    Relied(name="ray._private.node.Node.get_session_dir_path", by=f"{RAY}.session_directory", position=1),
    Relied(name="ray._private.node.Node.raylet_socket_name", by=f"{RAY}.raylet_socket"),
    Relied(
        name="ray._private.node.Node.live_processes",
        by=f"{RAY}.variables_of_workers",
        position=1,
        says=("append((process_type, process_info.process))",),
    ),
    Relied(
        name="ray._private.ray_constants.RAY_INTERNAL_FLAGS",
        by=f"{RAY}.variables_of_workers",
        value=["RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"],
    ),
    Relied(
        name="ray._private.runtime_env.constants.RAY_JOB_CONFIG_JSON_ENV_VAR",
        by=f"{RAY}.is_job_driver",
        value="RAY_JOB_CONFIG_JSON_ENV_VAR",
    ),
    Relied(
        name="ray._private.worker.init",
        by=f"{RAY}.start_options",
        says=('kwargs.pop("_temp_dir"', 'kwargs.pop("_system_config"'),
    ),
    Relied(name="ray._private.grpc_utils.init_grpc_channel", by=f"{RAY}._asking", position=2),
    Relied(name="ray._private.ray_constants.GLOBAL_GRPC_OPTIONS", by=f"{RAY}._asking"),
    Relied(
        name="ray.core.generated.node_manager_pb2_grpc.NodeManagerServiceStub",
        by=f"{RAY}._asking",
        position=1,
        says=("self.PrestartWorkers = channel.unary_unary(", "self.GetWorkerPIDs = channel.unary_unary("),
    ),
    Relied(name="ray.core.generated.node_manager_pb2.GetWorkerPIDsRequest", by=f"{RAY}.workers_at"),
    Relied(name="ray.core.generated.node_manager_pb2.PrestartWorkersRequest", by=f"{RAY}.start_idle_worker"),
    Relied(name="ray.core.generated.common_pb2.PYTHON", by=f"{RAY}.start_idle_worker", value=0),
    Relied(name="ray.core.generated.runtime_environment_pb2.RuntimeEnvInfo", by=f"{RAY}.start_idle_worker"),
    Relied(
        name=f"{GROUP}.worker_group.WorkerGroup._get_worker_runtime_env",
        by=f"{RAY}.environment_of_workers",
        position=1,
        says=("merged_env_vars = get_env_vars_to_propagate()", 'custom_runtime_env.get("env_vars", {})'),
    ),
    Relied(name="ray._raylet.Config.initialize", by=f"{RAY}.reread_variables", position=1),
    Relied(name="ray._raylet.AuthenticationTokenLoader.instance", by=f"{RAY}.reread_variables", position=0),
    Relied(
        name="ray._raylet.AuthenticationTokenLoader.reset_cache",
        by=f"{RAY}.reread_variables",
        position=1,
    ),
    Relied(name="ray._private.ray_constants.ENABLE_RAY_CLUSTER", by=f"{RAY}.on_loopback"),
    Relied(
        name="ray._private.ray_constants",
        by="cluster.local_ray.marked_directory.environment_of",
        says=('"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"',),
    ),
    Relied(
        name="ray._private.services.get_node_ip_address",
        by=f"{RAY}.on_loopback",
        says=("if not ray_constants.ENABLE_RAY_CLUSTER:",),
    ),
    # What takes its place is called so.
    Relied(name="ray._private.services.get_node_ip_address", by=f"{RAY}.ray_on_loopback", position=1),
    Relied(
        name="ray.scripts.scripts.start.callback",
        by=f"{RAY}.ray_on_loopback",
        says=("services.get_node_ip_address(", "if not ray_constants.ENABLE_RAY_CLUSTER:"),
    ),
    Relied(name="ray.scripts.scripts.main", by=f"{RAY}.ray_on_loopback"),
    Relied(name="ray._private.worker.listen_error_messages", by=f"{RAY}.lost_node_messages"),
    Relied(
        name="ray._private.worker.connect",
        by=f"{RAY}.lost_node_messages",
        says=("target=listen_error_messages",),
    ),
    Relied(name="ray._private.services.ConsolePopen", by=f"{RAY}.ended_by_driver_alone"),
    Relied(
        name="ray._private.services.start_ray_process",
        by=f"{RAY}.ended_by_driver_alone",
        says=("ConsolePopen(",),
    ),
    Relied(
        name="ray._private.node.Node._kill_process_impl",
        by=f"{RAY}.ended_by_driver_alone",
        says=("process.terminate()",),
    ),
    Relied(name="ray._private.utils.get_entrypoint_name", by=f"{RAY}.entrypoint_without_options", position=0),
    Relied(
        name="ray._private.worker.init",
        by=f"{RAY}.entrypoint_without_options",
        says=("entrypoint=ray._private.utils.get_entrypoint_name()",),
    ),
    Relied(
        name="ray._private.parameter.RayParams",
        by=f"{RAY}.lean",
        position=0,
        keywords=("no_monitor", "setup_worker_path", "include_log_monitor"),
    ),
    Relied(
        name="ray._private.worker.init",
        by=f"{RAY}.lean",
        says=("ray_params = ray._private.parameter.RayParams(",),
    ),
    # What takes its place returns such a pair, without a process.
    Relied(
        name="ray._private.node.Node.start_api_server",
        by=f"{RAY}.lean",
        says=(
            "self._webui_url, process_info = ray._private.services.start_api_server(",
            "if process_info is not None:",
        ),
    ),
    Relied(name="ray._private.services.start_api_server", by=f"{RAY}.lean"),
    Relied(
        name="ray._private.node.Node.start_head_processes",
        by=f"{RAY}.lean",
        says=("if not self._ray_params.no_monitor:",),
    ),
    Relied(
        name="ray._private.node.Node.start_ray_processes",
        by=f"{RAY}.lean",
        says=("if self._ray_params.include_log_monitor:",),
    ),
    Relied(
        name="ray._private.services._build_python_executable_command_memory_profileable",
        by=f"{RAY}.lean",
        position=2,
    ),
    Relied(name="ray._private.ray_constants.PROCESS_TYPE_DASHBOARD_AGENT", by=f"{RAY}.lean"),
    Relied(
        name="ray._private.utils.get_dashboard_dependency_error",
        by=f"{RAY}.lean",
        position=0,
        replaced_by=f"{RAY}._unwanted",
    ),
    Relied(
        name="ray._private.services.start_raylet",
        by=f"{RAY}.lean",
        says=("if ray._private.utils.get_dashboard_dependency_error() is not None:",),
    ),
    Relied(
        name="ray._private.services.start_raylet",
        by="cluster.local_ray.agent_stand_in.main",
        says=('f"--node-id={node_id}"', 'f"--session-dir={session_dir}"'),
    ),
    Relied(name="ray._raylet.METRICS_AGENT_PORT_NAME", by=STAND_IN, value="metrics_agent_port"),
    Relied(name="ray._raylet.METRICS_EXPORT_PORT_NAME", by=STAND_IN, value="metrics_export_port"),
    Relied(
        name="ray._raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME", by=STAND_IN, value="dashboard_agent_listen_port"
    ),
    Relied(
        name="ray._private.runtime_env.context.RuntimeEnvContext",
        by="cluster.local_ray.worker_start.line",
        says=(
            'executable = ["exec", self.py_executable]',
            "passthrough_args[0] = self.override_worker_entrypoint",
            "cmd = [*self.command_prefix, *executable, *passthrough_args]",
            'os.execvp("bash", args=["bash", "-c", " ".join(cmd)])',
        ),
    ),
    Relied(
        name="ray._private.utils.update_envs",
        by="cluster.local_ray.worker_start.expanded",
        says=("os.path.expandvars(value)", 'r"\\$\\{[A-Z0-9_]+\\}", ""'),
    ),
    Relied(
        name="ray._private.workers.setup_worker",
        by="cluster.local_ray.worker_start.main",
        says=('"--serialized-runtime-env-context"', '"--language"'),
    ),
    Relied(name="ray._private.node.Node.is_head", by=f"{RAY}.is_own_ray", position=1),
    Relied(name="ray._private.utils.set_sigterm_handler", by=f"{RAY}.sigterm_left_alone"),
    Relied(
        name="ray._private.worker.init",
        by=f"{RAY}.sigterm_left_alone",
        says=("ray._private.utils.set_sigterm_handler(",),
    ),
    Relied(name="ray.actor.ActorClassID.from_random", by=f"{RAY}.ids_from_the_kernel", position=0),
    Relied(name="ray.actor.ActorClassID.size", by=f"{RAY}.ids_from_the_kernel", position=0),
    Relied(
        name="ray.actor._make_actor", by=f"{RAY}.ids_from_the_kernel", says=("ActorClassID.from_random()",)
    ),
    Relied(
        name="ray._private.ray_constants.RAY_WORKER_NICENESS",
        by=f"{RAY}.keep_priority",
        value="RAY_worker_niceness",
    ),
    Relied(name="ray.actor._modify_class", by=f"{RAY}.readiness_of", says=("def __ray_ready__(self)",)),
    Relied(name=f"{V2}.constants.get_env_vars_to_propagate", by=f"{RAY}.propagated_variables", position=0),
    Relied(name=TRAINER, by=f"{TRAIN}.DrivenTrainer", says=("self.run_config = ",)),
    Relied(
        name=f"{TRAINER}.fit", by=f"{TRAIN}.DrivenTrainer", says=("self._initialize_and_run_controller(",)
    ),
    Relied(
        name=f"{TRAINER}._create_default_callbacks",
        by=f"{TRAIN}.DrivenTrainer",
        position=1,
        replaced_by=f"{TRAIN}.DrivenTrainer._create_default_callbacks",
        says=("DatasetsCallback(", "PlacementGroupCleanerCallback("),
    ),
    # Ours names what Ray gives by keyword otherwise.
    Relied(
        name=f"{TRAINER}._initialize_and_run_controller",
        by=f"{TRAIN}.DrivenTrainer",
        says=("(self, **", "controller.run.remote()", "controller.get_result.remote()"),
    ),
    Relied(name=f"{V2}.callbacks.DatasetsCallback", by=f"{TRAIN}.DrivenTrainer"),
    Relied(
        name=f"{V2}.callbacks.placement_group_callback.PlacementGroupCleanerCallback",
        by=f"{TRAIN}.DrivenTrainer",
    ),
    Relied(
        name=f"{V2}.execution.scaling_policy.FixedScalingPolicy",
        by=f"{TRAIN}.AskingNobody",
        position=1,
        says=("self._maybe_send_resource_request()",),
    ),
    Relied(
        name=f"{V2}.execution.scaling_policy.scaling_policy.ScalingPolicy.after_controller_start",
        by=f"{TRAIN}.AskingNobody",
        replaced_by=f"{TRAIN}.AskingNobody.after_controller_start",
    ),
    Relied(
        name=f"{V2}.execution.scaling_policy.scaling_policy.ScalingPolicy._maybe_send_resource_request",
        by=f"{TRAIN}.AskingNobody",
        replaced_by=f"{TRAIN}.AskingNobody._maybe_send_resource_request",
    ),
    Relied(
        name=f"{V2}.execution.scaling_policy.scaling_policy.ScalingPolicy._cancel_resource_request",
        by=f"{TRAIN}.AskingNobody",
        says=("if self._coordinator_client is None:\n            return\n",),
    ),
    Relied(
        name=f"{TRAINER}.fit",
        by=f"{TRAIN}.without_autoscaler",
        says=("scaling_policy=create_scaling_policy(self.scaling_config)",),
    ),
    Relied(name=f"{V2}.execution.controller.controller.TrainController", by=f"{TRAIN}.start_controller"),
    Relied(
        name=f"{V2}.execution.controller.controller.TrainController.run",
        by=f"{TRAIN}.result_of",
        position=1,
    ),
    Relied(
        name=f"{V2}.execution.controller.controller.TrainController.get_result",
        by=f"{TRAIN}.result_of",
        position=1,
    ),
    Relied(
        name=f"{CALLBACK}.ControllerCallback.after_controller_start",
        by=f"{TRAIN}.GroupWatcher",
        replaced_by=f"{TRAIN}.GroupWatcher.after_controller_start",
    ),
    Relied(
        name=f"{CALLBACK}.WorkerGroupCallback.before_init_train_context",
        by=f"{TRAIN}.GroupWatcher",
        replaced_by=f"{TRAIN}.GroupWatcher.before_init_train_context",
    ),
    Relied(
        name=f"{CALLBACK}.WorkerGroupCallback.before_init_train_context",
        by=f"{TRAIN}.InEachWorker",
        replaced_by=f"{TRAIN}.InEachWorker.before_init_train_context",
    ),
    Relied(
        name=f"{CALLBACK}.WorkerGroupCallback.after_worker_group_poll_status",
        by=f"{TRAIN}.GroupWatcher",
        replaced_by=f"{TRAIN}.GroupWatcher.after_worker_group_poll_status",
    ),
    Relied(
        name=f"{GROUP}.worker.Worker", by=f"{TRAIN}.GroupWatcher", says=("    metadata: ActorMetadata\n",)
    ),
    Relied(name=f"{GROUP}.worker.ActorMetadata", by=f"{TRAIN}.GroupWatcher", says=("    node_id: str\n",)),
    Relied(name=f"{GROUP}.worker.Worker.execute_async", by=f"{TRAIN}.InEachWorker", position=3),
    Relied(name=f"{GROUP}.worker.Worker.execute_async", by=f"{TRAIN}._call", position=2),
    Relied(
        name=f"{CALLBACK}.WorkerGroupCallback.before_worker_group_shutdown",
        by=f"{TRAIN}.GroupWatcher",
        replaced_by=f"{TRAIN}.GroupWatcher.before_worker_group_shutdown",
    ),
    Relied(name=f"{GROUP}.poll.WorkerGroupPollStatus.errors", by=f"{TRAIN}.GroupWatcher"),
    Relied(name=f"{GROUP}.worker_group.placement_group", by=f"{TRAIN}.name_placements"),
    Relied(
        name=f"{GROUP}.worker_group.WorkerGroup._create_placement_group",
        by=f"{TRAIN}.name_placements",
        says=(" = placement_group(",),
    ),
    Relied(name=f"{V2}.exceptions.WorkerGroupStartupTimeoutError", by=f"{TRAIN}.found_no_room"),
    Relied(name=f"{V2}.exceptions.WorkerGroupStartupFailedError", by=f"{TRAIN}.is_start_failed"),
    Relied(
        name=f"{V2}.exceptions.WorkerHealthCheckFailedError",
        by=f"{TRAIN}.behind_health_check",
        says=("self.health_check_failure = failure",),
    ),
    # No door has these: their words are read where there is no Ray, or they have no underscore.
    Relied(
        name="ray._private.services.start_raylet",
        by="jobs.launch.forkserver.client.main",
        says=("--raylet-name=",),
    ),
    Relied(
        name="ray.core.generated.common_pb2.NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED",
        by="cluster.nodes.seen_nodes",
        value=3,
    ),
    Relied(
        name="ray.core.generated.common_pb2.NodeDeathInfo.AUTOSCALER_DRAIN_IDLE",
        by="cluster.nodes.seen_nodes",
        value=4,
    ),
    Relied(
        name="ray.scripts.scripts.start.callback",
        by="cluster.local_ray.simulated.MixedCluster",
        says=("system_config,",),
    ),
    Relied(
        name=f"{V2}.execution.storage.StorageContext.build_checkpoint_path_from_name",
        by="checkpointing.ray_hooks.point_at",
        position=2,
    ),
    *variables(),
)
