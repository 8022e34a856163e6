"""Names of other libraries: each gives its counterpart, or an error whose advice names things that exist."""

import ast
import builtins
import copy
import functools
import importlib
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import ding_lite
from ding_lite import OfflineRLContext, OnlineRLContext, Task, task
from ding_lite.basics import di_engine_settings, foreign_arguments, foreign_names, offline_settings
from ding_lite.config import DQNConfig
from ding_lite.contexts.foreign_names import FOREIGN_FIELDS, FOREIGN_OFFLINE_FIELDS
from ding_lite.data import EpisodeReplayBuffer, GoalRewards, PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.data.foreign_names import ARGUMENTS as BUFFER_ARGUMENTS
from ding_lite.data.foreign_names import ATTRIBUTES as BUFFER_ATTRIBUTES
from ding_lite.data.foreign_names import PUSH_ARGUMENTS, SAMPLE_ARGUMENTS
from ding_lite.engine.foreign_names import ATTRIBUTES as TASK_ATTRIBUTES
from ding_lite.envs import make_envs
from ding_lite.envs.foreign_names import ATTRIBUTES as ENV_ATTRIBUTES
from ding_lite.foreign_modules import MODULES
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.metrics_loggers import FOREIGN_ATTRIBUTES as LOGGER_ATTRIBUTES
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.policy import CollectConfig, DQNPolicy, Policy, PPOPolicy, SampleBatch, build_policy, compute_advantages
from ding_lite.policy_base.foreign_hooks import FOREIGN_ATTRIBUTES, FOREIGN_HOOKS, MODE_ATTRIBUTES
from ding_lite.policy_check import foreign_methods
from ding_lite.policy_parts.sample_batch import FOREIGN_COLUMNS
from ding_lite.run_configs.foreign_names import FOREIGN_METHODS

PACKAGES = ["ding_lite", *(f"ding_lite.{name}" for name in ("config", "data", "envs", "middleware", "nn", "policy"))]
TABLES = {package: importlib.import_module(f"{package}.foreign_names") for package in PACKAGES}
ROWS = [
    (package, library, name) for package, table in TABLES.items() for library, names in table.NAMES.items() for name in names
]
ALIASES = [(package, name) for package, table in TABLES.items() for name in getattr(table, "ALIASES", ())]

DI_ENGINE = {
    "ding_lite": "task Task Context OnlineRLContext OfflineRLContext Parallel EventLoop Supervisor VoidMiddleware ding_init",
    "ding_lite.middleware": """
        StepCollector EpisodeCollector PPOFStepCollector OffPolicyLearner HERLearner CkptSaver ContextExchanger ModelExchanger
        PeriodicalModelExchanger Barrier BarrierRuntime OfflineMemoryDataFetcher trainer multistep_trainer
        offpolicy_data_fetcher data_pusher offline_data_fetcher offline_data_saver
        offline_memory_data_fetcher offline_data_fetcher_from_mem
        sqil_data_pusher buffer_saver inferencer rolloutor TransitionList interaction_evaluator interaction_evaluator_ttorch
        termination_checker ddp_termination_checker online_logger offline_logger wandb_online_logger wandb_offline_logger
        final_ctx_saver eps_greedy_handler eps_greedy_masker gae_estimator ppof_adv_estimator montecarlo_return_estimator
        reward_estimator her_data_enhancer nstep_reward_enhancer priority_calculator epoch_timer""",
    "ding_lite.data": """
        Buffer apply_middleware BufferedData DequeBuffer DequeBufferWrapper clone_object use_time_check staleness_check
        PriorityExperienceReplay padding group_sample sample_range_view StorageLoader FileStorageLoader ShmBufferContainer
        ShmBuffer ModelLoader FileModelLoader create_dataset offline_data_save_type""",
    "ding_lite.envs": """
        BaseEnv get_vec_env_setting BaseEnvTimestep get_env_cls DingEnvWrapper get_default_wrappers BaseEnvManager
        BaseEnvManagerV2 create_env_manager get_env_manager_cls AsyncSubprocessEnvManager SyncSubprocessEnvManager
        SubprocessEnvManagerV2 GymVectorEnvManager EnvSupervisor setup_ding_env_manager""",
    "ding_lite.config": """
        read_config save_config compile_config compile_config_parallel read_config_directly read_config_with_system
        save_config_py parallel_transform parallel_transform_slurm A2C C51 DDPG DQN PG PPOF PPOOffPolicy SAC SQL TD3""",
    "ding_lite.policy": """
        Policy CommandModePolicy create_policy get_policy_cls single_env_forward_wrapper single_env_forward_wrapper_ttorch
        default_preprocess_learn DQNSTDIMPolicy DQNPolicy MDQNPolicy IQNPolicy FQFPolicy QRDQNPolicy C51Policy RainbowDQNPolicy
        DDPGPolicy D4PGPolicy TD3Policy TD3VAEPolicy TD3BCPolicy DTPolicy PGPolicy A2CPolicy PPOPolicy PPOPGPolicy PPOOffPolicy
        SACPolicy DiscreteSACPolicy SQILSACPolicy CQLPolicy DiscreteCQLPolicy EDACPolicy IMPALAPolicy NGUPolicy R2D2Policy
        R2D2GTrXLPolicy PPGPolicy PPGOffPolicy SQNPolicy BDQPolicy QMIXPolicy WQMIXPolicy COMAPolicy CollaQPolicy ATOCPolicy
        ACERPolicy QTRANPolicy ILPolicy R2D3Policy PolicyFactory get_random_policy PDQNPolicy BehaviourCloningPolicy IBCPolicy
        ProcedureCloningBFSPolicy BCQPolicy QGPOPolicy PPOFPolicy PromptPGPolicy PromptAWRPolicy HAPPOPolicy""",
}
"""What the packages of DI-engine 0.5.3 export under these names, without its registries."""


RLLIB = {
    "ding_lite": """
        SampleBatch MultiAgentBatch build_policy_class build_torch_policy build_tf_policy Policy TorchPolicy TFPolicy Algorithm
        Trainer Trainable PPOTrainer DQNTrainer ImpalaTrainer A2CTrainer SACTrainer PPO DQN SAC IMPALA PPOConfig DQNConfig
        SACConfig IMPALAConfig ImpalaConfig AlgorithmConfig tune Tuner ray Callbacks DefaultCallbacks RLlibCallback
        MultiAgentEnv register_env ModelCatalog TorchModelV2 RolloutWorker MetricsLogger standardize_fields""",
    "ding_lite.policy": """
        SampleBatch MultiAgentBatch build_policy_class build_torch_policy build_tf_policy Policy TorchPolicy TFPolicy
        RLModule PPOTrainer ImpalaTrainer postprocess_ppo_gae
        TorchPolicyV2 PPOTFPolicy PPOTorchPolicy DQNTorchPolicy SACTorchPolicy VTraceTorchPolicy A3CTorchPolicy PPO SAC DQN
        IMPALA BEHAVIOUR_LOGITS standardize_fields explained_variance compute_gae_for_sample_batch""",
    "ding_lite.envs": "MultiAgentEnv PettingZooEnv ParallelPettingZooEnv VectorEnv BaseEnv ExternalEnv EnvContext register_env",
    "ding_lite.middleware": "DefaultCallbacks synchronous_parallel_sample train_one_step multi_gpu_train_one_step "
    "standardize_fields",
    "ding_lite.data": "SampleBatch ReplayBuffer PrioritizedReplayBuffer MultiAgentReplayBuffer JsonReader JsonWriter",
    "ding_lite.nn": "ModelCatalog TorchModelV2 FullyConnectedNetwork ActionDistribution TorchDistributionWrapper",
}
"""What users of RLlib try to import."""

RLLIB_HOOKS = """
    name framework loss_fn get_default_config stats_fn postprocess_fn extra_action_out_fn extra_grad_process_fn
    extra_learn_fetches_fn optimizer_fn validate_spaces before_init before_loss_init after_init _after_loss_init
    action_sampler_fn action_distribution_fn make_model make_model_and_action_dist compute_gradients_fn apply_gradients_fn
    mixins view_requirements_fn get_batch_divisibility_req grad_stats_fn obs_include_prev_action_reward extra_action_fetches_fn
    extra_actions_fetches_fn gradients_fn make_action_sampler"""
"""The arguments of RLlib's `build_policy_class` and `build_tf_policy`, in all of its versions."""

OTHERS = {
    "ding_lite": "A2C PPO BaseCallback NormalActionNoise BaseFeaturesExtractor MlpPolicy MaskablePPO Batch Collector common "
    "trainer exploration",
    "ding_lite.data": "Batch Collector VectorReplayBuffer HerReplayBuffer",
    "ding_lite.middleware": "BaseCallback EvalCallback Collector",
    "ding_lite.nn": "BaseFeaturesExtractor MlpPolicy",
    "ding_lite.policy": "MlpPolicy MaskablePPO PPO",
}
"""What users of Stable-Baselines3 and Tianshou try to import."""


class Unknown:
    """The result of a call, which has any attribute."""


class Made:
    """An object that a call of this class would make."""

    def __init__(self, kind):
        self.kind = kind


@functools.cache
def known_names():
    """Everything that a script may import, and the variables of the examples."""
    found = {"gymnasium": gymnasium, "partial": functools.partial, "MyEnv": gymnasium.Env, "MyWrapper": gymnasium.Wrapper}
    for package in (
        *PACKAGES,
        "ding_lite.contexts",
        "ding_lite.engine",
        "ding_lite.metrics",
        "ding_lite.datasets",
        "ding_lite.distributed",
    ):
        module = importlib.import_module(package)
        found |= {name: getattr(module, name) for name in module.__all__}
    cfg = found["DQNConfig"]()
    envs = make_envs("CartPole-v1", 1)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    unknown = "action action_space batch dataset envs event expert_buffer fn main_config middleware name obs state weights"
    found |= dict.fromkeys(unknown.split(), Unknown())
    found |= dict.fromkeys(("metric", "observation_space", "path", "policies", "policy_of", "settings"), Unknown())
    return found | {
        "cfg": cfg,
        "policy": policy,
        "env": envs,
        "buffer_": ReplayBuffer(10),
        "ctx": OnlineRLContext(),
        "task": task,
    }


def resolved(node):
    """The object that an expression names; calls are not made, but their arguments must fit."""
    if isinstance(node, ast.Name):
        return known_names()[node.id] if node.id in known_names() else getattr(builtins, node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value)
        if isinstance(owner, Unknown):
            return owner
        return (
            functools.partial(getattr(owner.kind, node.attr), owner) if isinstance(owner, Made) else getattr(owner, node.attr)
        )
    if isinstance(node, ast.Call):
        function = resolved(node.func)
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            resolved(part)
        if not isinstance(function, Unknown) and function is not functools.partial:
            is_policy = isinstance(function, type) and issubclass(function, Policy)  # a mixin may have another constructor
            inspect.signature(Policy if is_policy else function).bind(
                *node.args, **{keyword.arg: keyword.value for keyword in node.keywords}
            )
        return Made(function) if isinstance(function, type) else Unknown()
    if isinstance(node, ast.Assign):
        return [resolved(part) for part in (*node.targets, node.value)]
    if isinstance(node, ast.If):
        return resolved(node.test)
    if isinstance(node, ast.ImportFrom):
        return [getattr(importlib.import_module(node.module), alias.name) for alias in node.names]
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.expr, ast.stmt)):
            resolved(inner)
    return Unknown()


def require_code(advice):
    """The code in backticks of an advice names things that exist, and calls them with arguments that they take."""
    for code in re.findall(r"`([^`]+)`", advice):
        statement = ast.parse(code).body[0]
        before = known_names()["cfg"]
        for config in ("DQNConfig", "PPOConfig"):
            known_names()["cfg"] = known_names()[config]()
            try:
                resolved(statement)
                break
            except AttributeError:
                if config == "PPOConfig":
                    raise
            finally:
                known_names()["cfg"] = before


@pytest.mark.parametrize(("package", "library", "name"), ROWS)
def test_a_name_of_another_library_gives_advice(package, library, name):
    module = importlib.import_module(package)
    assert name not in module.__all__
    with pytest.raises(ImportError) as caught:
        exec(f"from {package} import {name}")

    advice = str(caught.value)
    assert advice.startswith(f"{package} has no {name!r}, a name of {library}: ")
    assert advice.endswith(".")
    assert "`" in advice
    require_code(advice)


MODULE_ROWS = [(library, name) for library, names in MODULES.items() for name in names]
FIRST_MODULES = [row for row in MODULE_ROWS if "." not in row[1]]


@pytest.mark.parametrize(("library", "name"), MODULE_ROWS)
def test_a_module_of_another_library_gives_advice(library, name):
    for statement in (f"import ding_lite.{name}", f"from ding_lite.{name} import Any", f"import ding_lite.{name}.deeper"):
        with pytest.raises(ModuleNotFoundError) as caught:
            exec(statement)
        assert caught.value.name == f"ding_lite.{name}"
        assert str(caught.value).startswith(f"ding_lite has no module {name!r}, a name of {library}: ")
        assert str(caught.value).endswith(".")
        assert "`" in str(caught.value)
    require_code(MODULES[library][name])


@pytest.mark.parametrize(("library", "name"), FIRST_MODULES)
def test_a_module_of_another_library_gives_advice_as_a_name_of_the_package_too(library, name):
    with pytest.raises(ImportError, match=f"ding_lite has no {name!r}, a name of "):
        exec(f"from ding_lite import {name}")


def test_other_modules_are_found_or_not_found_as_before():
    assert importlib.util.find_spec("ding_lite.middleware").name == "ding_lite.middleware"
    for name in ("ding_lite.no_such_module", "ding_lite.middleware.no_such_module", "no_such_package"):
        assert importlib.util.find_spec(name) is None
        with pytest.raises(ModuleNotFoundError, match=rf"^No module named '{name}'$"):
            importlib.import_module(name)
    for name in ("framework", "utils"):  # asking whether there is one is no import
        assert importlib.util.find_spec(f"ding_lite.{name}") is None
        with pytest.raises(ModuleNotFoundError, match=f"ding_lite has no module '{name}'"):
            importlib.import_module(f"ding_lite.{name}")
    assert len([finder for finder in sys.meta_path if type(finder).__name__ == "_ForeignModules"]) == 1


@pytest.mark.parametrize(("package", "name"), ALIASES)
def test_a_name_for_the_same_thing_gives_that(package, name):
    target = TABLES[package].ALIASES[name].rpartition(".")
    found = getattr(importlib.import_module(package), name)

    assert found is getattr(importlib.import_module(target[0]), target[2])


@pytest.mark.parametrize("package", DI_ENGINE)
def test_each_name_that_di_engine_exports_answers(package):
    names = DI_ENGINE[package].split()
    here = {*importlib.import_module(package).__all__, *(name for where, _, name in ROWS if where == package)}
    aliases = {name for where, name in ALIASES if where == package}

    assert package != "ding_lite.middleware" or len(names) == 44
    assert [name for name in names if name not in here | aliases] == []


@pytest.mark.parametrize(("package", "names"), [*RLLIB.items(), *OTHERS.items()])
def test_each_name_that_users_of_other_libraries_try_answers(package, names):
    here = {*importlib.import_module(package).__all__, *(name for where, _, name in ROWS if where == package)}
    assert [name for name in names.split() if name not in here] == []


@pytest.mark.parametrize("hook", FOREIGN_HOOKS)
def test_a_hook_of_rllib_gives_advice(hook):
    with pytest.raises(TypeError) as caught:
        build_policy("Mine", loss_fn=print, **{hook: None})
    assert str(caught.value) == f"build_policy() has no argument {hook!r}: {FOREIGN_HOOKS[hook]}"
    assert str(caught.value).endswith(".")
    require_code(FOREIGN_HOOKS[hook])

    with pytest.raises(TypeError) as caught:
        PPOPolicy.with_updates(**{hook: print})
    assert str(caught.value) == f"PPOPolicy: there is no hook {hook!r}: {FOREIGN_HOOKS[hook]}"


@pytest.mark.parametrize("method", foreign_methods.ADVICE)
def test_the_advice_on_a_method_of_a_policy_names_things_that_exist(method):
    assert foreign_methods.ADVICE[method].endswith(".")
    require_code(foreign_methods.ADVICE[method])


def test_the_hooks_for_methods_of_other_libraries_exist():
    assert [hook for hook in foreign_methods.HOOKS.values() if not hasattr(Policy, hook)] == []


def test_every_hook_of_rllib_is_an_argument_or_gives_advice():
    known = inspect.signature(build_policy).parameters
    assert [hook for hook in RLLIB_HOOKS.split() if hook not in {*known, *FOREIGN_HOOKS}] == []
    assert not set(known) & set(FOREIGN_HOOKS)


def test_a_framework_by_its_place_gives_advice_and_mixins_may_be_none():
    with pytest.raises(TypeError, match="has no argument 'framework': torch is the only framework"):
        build_policy("Mine", "torch", loss_fn=lambda policy, model, dist_class, batch: 0)
    assert build_policy("Mine", loss_fn=lambda policy, model, dist_class, batch: 0, mixins=None).__name__ == "Mine"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package):
    module = importlib.import_module(package)

    assert not hasattr(module, "no_such_name")
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_such_name'"):
        _ = module.no_such_name


def test_the_contexts_are_names_of_the_package_whose_import_stays_cheap():
    code = "import ding_lite, sys; print([name for name in ('torch', 'gymnasium', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
    assert {"OnlineRLContext", "OfflineRLContext"} <= set(ding_lite.__all__)
    assert (ding_lite.OnlineRLContext, ding_lite.OfflineRLContext) == (OnlineRLContext, OfflineRLContext)


ROWS_OF_DATA = {
    "obs": np.zeros((3, 4), np.float32),
    "next_obs": np.zeros((3, 4), np.float32),
    "action": np.zeros(3, np.int64),
    "reward": np.zeros(3, np.float32),
    "terminated": np.ones(3, np.bool_),
    "truncated": np.zeros(3, np.bool_),
}


def arguments_of(name):
    """Arguments with which this middleware can be made."""
    names = known_names()
    envs = names["env"]
    algorithm, kind = ("PPOConfig", PPOPolicy) if name in ("gae_estimator", "multistep_trainer") else ("DQNConfig", DQNPolicy)
    cfg = names[algorithm]()
    policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
    modes = {"EpisodeCollector": "collect_mode", "gae_estimator": "collect_mode", "rolloutor": "collect_mode"}
    mode = getattr(policy, modes.get(name, "eval_mode" if name == "interaction_evaluator" else "learn_mode"))
    replay = [EpisodeReplayBuffer(2000), GoalRewards(len)]
    return {
        "EpisodeCollector": [cfg, mode, envs],
        "HERLearner": [names["HERConfig"](), mode, *replay],
        "her_data_enhancer": [names["HERConfig"](), *replay],
        "OffPolicyLearner": [cfg, mode, ReplayBuffer(2000)],
        "data_pusher": [cfg, ReplayBuffer(10)],
        "sqil_data_pusher": [cfg, ReplayBuffer(10)],
        "interaction_evaluator": [cfg, mode, envs],
        "offline_data_fetcher": [cfg, ROWS_OF_DATA],
        "offline_data_saver": [cfg, "runs/data"],
        "offpolicy_data_fetcher": [cfg, ReplayBuffer(2000)],
        "online_logger": [None],
        "rolloutor": [mode, envs],
    }.get(name, [cfg, mode])


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name, table in ARGUMENTS.items() for argument in table])
def test_an_argument_of_di_engine_gives_advice(name, argument):
    middleware, arguments = known_names()[name], arguments_of(name)
    middleware(*arguments)
    with pytest.raises(TypeError) as caught:
        middleware(*arguments, **{argument: 1})

    assert str(caught.value) == f"{name}() has no argument {argument!r}: {ARGUMENTS[name][argument]}"
    require_code(str(caught.value))


@pytest.mark.parametrize(("name", "argument"), [("gae_estimator", "buffer_"), ("data_pusher", "group_by_env")])
def test_an_argument_of_di_engine_gives_advice_by_its_place_too(name, argument):
    with pytest.raises(TypeError, match=f"has no argument '{argument}'"):
        known_names()[name](*arguments_of(name), True)


def test_arguments_that_nobody_knows_are_refused_by_python():
    @foreign_arguments({"colour": "the color is ink=."})
    def paint(ink="blue"):
        return ink

    assert (paint(), paint("red"), paint(ink="red")) == ("blue", "red", "red")
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        paint(size=3)
    with pytest.raises(TypeError, match=r"paint\(\) has no argument 'inks': did you mean 'ink'\?"):
        paint(inks="red")


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("argument", BUFFER_ARGUMENTS)
def test_an_argument_of_a_deque_buffer_gives_advice(kind, argument):
    with pytest.raises(TypeError) as caught:
        kind(**{argument: 10})

    assert BUFFER_ARGUMENTS[argument] in str(caught.value)
    require_code(str(caught.value))


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, EpisodeReplayBuffer])
def test_positional_arguments_in_excess_are_not_taken_for_arguments_of_another_library(kind):
    with pytest.raises(TypeError, match=r"takes from 2 to \d+ positional arguments but \d+ were given"):
        kind(10, *[0] * 20)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, EpisodeReplayBuffer])
@pytest.mark.parametrize(
    ("method", "argument"),
    [*(("push", name) for name in PUSH_ARGUMENTS), *(("sample", name) for name in SAMPLE_ARGUMENTS)],
)
def test_an_argument_of_a_method_of_another_librarys_buffer_gives_advice(kind, method, argument):
    with pytest.raises(TypeError, match=rf"{method}\(\) has no argument '{argument}': ") as caught:
        getattr(kind(10), method)(**{argument: 1})
    require_code(str(caught.value))


@pytest.mark.parametrize(
    ("make", "table"),
    [
        (Task, TASK_ATTRIBUTES),
        (lambda: ReplayBuffer(10), BUFFER_ATTRIBUTES),
        (lambda: known_names()["env"], ENV_ATTRIBUTES),
        (lambda: known_names()["policy"], FOREIGN_ATTRIBUTES),
        (lambda: known_names()["policy"].learn_mode, MODE_ATTRIBUTES),
        (lambda: known_names()["policy"].collect_mode, MODE_ATTRIBUTES),
        (lambda: known_names()["policy"].eval_mode, MODE_ATTRIBUTES),
        (MetricsLogger, LOGGER_ATTRIBUTES),
        (lambda: SampleBatch, FOREIGN_COLUMNS),
        (OnlineRLContext, FOREIGN_FIELDS),
        (OfflineRLContext, FOREIGN_OFFLINE_FIELDS),
        (OnlineRLContext, {"has_attr": "write hasattr(ctx, name)."}),
    ],
)
def test_an_attribute_of_di_engine_gives_advice_and_does_not_exist(make, table):
    thing = make()
    for name, advice in table.items():
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError) as caught:
            getattr(thing, name)
        assert advice in str(caught.value)
        require_code(advice)


def test_a_class_of_a_user_may_define_an_attribute_of_another_library():
    class Mine(DQNPolicy):
        def get_state(self):
            return "mine"

    envs = known_names()["env"]
    assert Mine(None, envs.single_observation_space, envs.single_action_space).get_state() == "mine"


def test_an_argument_of_rllib_gives_advice():
    with pytest.raises(TypeError, match=r"compute_advantages\(\) has no argument 'use_critic': advantages are") as caught:
        compute_advantages(None, 0.0, use_critic=False)
    require_code(str(caught.value))


def test_a_field_of_di_engine_in_a_contract_or_an_assignment_gives_advice():
    @ding_lite.contract(reads=("info_for_logging",), stage="record")
    def read(ctx):
        return None

    loop = Task()
    with loop.start(ctx=OnlineRLContext()):
        loop.use(read)
        with pytest.raises(ding_lite.PipelineError, match="MetricsLogger"):
            loop.run(max_step=1)
    with pytest.raises(AttributeError, match="MetricsLogger"):
        OnlineRLContext().info_for_logging = {}


def test_a_task_that_is_driven_by_hand_can_be_chained():
    order = []

    def middleware(ctx):
        order.append(1)
        yield
        order.append(2)

    loop = Task()
    with loop.start():
        loop.forward(middleware, async_mode=True)
        assert loop.backward().sync() is loop
    assert order == [1, 2]


CONFIGS = [cls() for name, cls in vars(ding_lite.config).items() if name.endswith("Config") and hasattr(cls(), "policy")]
SETTINGS = [
    (section, name, advice)
    for section, table in (*vars(di_engine_settings).items(), *vars(offline_settings).items())
    if section.isupper() and isinstance(table, dict)
    for name, advice in table.items()
]


@pytest.mark.parametrize("name", FOREIGN_METHODS)
def test_a_method_of_rllibs_configurations_gives_advice(name):
    cfg = ding_lite.config.PPOConfig()
    assert not hasattr(cfg, name)
    with pytest.raises(AttributeError) as caught:
        getattr(cfg, name)

    assert str(caught.value) == f"PPOConfig has no {name!r}: {FOREIGN_METHODS[name]}"
    require_code(FOREIGN_METHODS[name])


def test_an_attribute_of_a_configuration_gives_advice_or_is_unknown():
    cfg = ding_lite.config.PPOConfig()
    with pytest.raises(AttributeError, match="PPOPolicyConfig has no 'num_workers': the number of workers is cfg.env.workers"):
        _ = cfg.policy.num_workers
    with pytest.raises(AttributeError, match="^'PPOConfig' object has no attribute 'no_such_name'$"):
        _ = cfg.no_such_name
    assert pickle.loads(pickle.dumps(cfg)) == copy.deepcopy(cfg) == cfg


def has_setting(config, place):
    for name in place.split("."):
        if not hasattr(config, name):
            return False
        config = getattr(config, name)
    return True


@pytest.mark.parametrize(("section", "name", "advice"), SETTINGS)
def test_the_advice_on_a_setting_names_settings_that_exist(section, name, advice):
    plain = re.sub(r"\w+\([^()]*\)", "", advice)  # calls are code, not settings
    for place in re.findall(r"\b(?:policy|env|log)\.[a-z_.]*[a-z_]", plain):
        assert any(has_setting(config, place) for config in CONFIGS), place
    for kind in re.findall(r"\b[A-Z]\w*Config\b", advice):
        assert hasattr(ding_lite.config, kind)
    for place, kind in re.findall(r"(policy\.[a-z_.]*[a-z_]) of ([A-Z]\w+Config)", advice):
        assert has_setting(getattr(ding_lite.config, kind)(), place)


def test_settings_of_offline_runs_of_di_engine_give_advice():
    """The names in its configurations of Decision Transformer, TD3+BC and CQL for D4RL."""
    places = {
        "policy": "rtg_target rtg_scale context_len wt_decay warmup_steps clip_grad_norm_p max_eval_ep_len num_eval_ep "
        "state_mean state_std env_name dataset_name evaluator_env_num num_updates_per_iter stop_value collate_fn",
        "policy.model": "state_dim act_dim n_blocks h_dim n_heads drop_p context_len max_timestep continuous",
        "policy.learn": "train_epoch normalize_states",
        "policy.collect": "normalize_states data_type data_path",
    }
    for config in ("DecisionTransformerConfig", "TD3BCConfig", "CQLConfig"):
        for place, names in places.items():
            for name in names.split():
                if place == "policy.model" and config != "DecisionTransformerConfig":
                    continue
                with pytest.raises(ValueError, match=rf"has no '{name}': \w.*\.$") as caught:
                    getattr(ding_lite.config, config)().override({f"{place}.{name}": 1})
                assert "did you mean" not in str(caught.value)
    with pytest.raises(ValueError, match="it is policy.target_return of DecisionTransformerConfig"):
        ding_lite.config.DecisionTransformerConfig().override({"policy.rtg_target": 3600})
    with pytest.raises(ImportError, match="it is `DecisionTransformerPolicy`"):
        importlib.import_module("ding_lite.policy").DTPolicy  # noqa: B018


def test_a_setting_of_ones_own_with_a_name_of_di_engine_is_kept_without_a_warning(recwarn):
    class Mine(PPOPolicy):
        pass

    envs = known_names()["env"]
    policy = Mine({"kappa": 0.5, "noise": 0.1}, envs.single_observation_space, envs.single_action_space)

    assert (policy.config["kappa"], policy.config["noise"]) == (0.5, 0.1)
    assert not [warning for warning in recwarn if "kappa" in str(warning.message) or "noise" in str(warning.message)]


def test_advice_is_found_in_base_classes_and_only_in_the_tables_asked_for():
    class Mine(CollectConfig):
        foreign = {"rollout": "it is n_sample."}

    assert Mine.about("rollout") == Mine.about("rollout", "foreign") == "it is n_sample."
    assert Mine.about("unroll_len") == CollectConfig.about("unroll_len", "di_engine") is not None
    assert Mine.about("unroll_len", "foreign") is Mine.about("nothing") is None


def test_an_alias_imports_its_module_when_it_is_used():
    get = foreign_names("mine", {}, {"first": "no_such_module.First", "sqrt": "math.sqrt"})

    assert get("sqrt")(9) == 3
    with pytest.raises(ModuleNotFoundError):
        get("first")


def test_a_mixin_behind_a_policy_keeps_its_methods():
    class StateMixin:
        def get_state(self):
            return {"a": 1}

    class Mixed(DQNPolicy, StateMixin):
        pass

    policy = Mixed(None, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    assert policy.get_state() == {"a": 1}
    with pytest.raises(AttributeError, match="DQNPolicy has no 'get_state'"):
        DQNPolicy(None, spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).get_state()


def test_the_error_of_a_property_of_a_configuration_is_its_own():
    class Own(DQNConfig):
        @property
        def learners(self):
            raise AttributeError("inner problem")

    with pytest.raises(AttributeError, match="^inner problem$"):
        _ = Own().learners
