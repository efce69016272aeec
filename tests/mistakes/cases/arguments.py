"""Training arguments."""

import shutil

from mistakes import Case, both, domain, group, patch, without

CASES = [
    Case("mistypes a training argument", group("train", max_step=3), says=("train.max_step", "max_steps")),
    Case("sets the trainer's seed", group("train", seed=3), says=("train.seed", "run.seed")),
    Case("mistypes a schedule", group("train", lr_scheduler_type="lineal"), says=("lineal",)),
    Case(
        "streams a corpus without saying for how many steps",
        both(domain(streaming=True), without("train.max_steps")),
        says=("train.max_steps",),
    ),
    Case("mistypes a tracker", group("train", report_to="tensorbord"), says=("`train.report_to`", "'tensorboard'")),
    Case(
        "mistypes one of two trackers",
        group("train", report_to=["wandb", "mlfow"]),
        says=("`train.report_to` cannot be 'mlfow'", "'mlflow'"),
    ),
    Case(
        "reports to a tracker that is not installed",
        group("train", report_to="clearml"),
        says=("`train.report_to: clearml`", "install"),
    ),
    Case(
        "writes a mapping for a tracker",
        group("train", report_to=[{"name": "wandb"}]),
        says=("`train.report_to` cannot be '{'name': 'wandb'}'",),
    ),
    Case("mistypes an optimizer", group("train", optim="adamw_torc"), says=("`train.optim`", "'adamw_torch'")),
    Case(
        "asks for an optimizer that is not installed",
        group("train", optim="lomo"),
        says=("`train.optim: lomo`", "install"),
    ),
    Case(
        "gives an optimizer options that are none",
        group("train", optim_args="fast"),
        says=("`train.optim_args: fast`",),
    ),
    Case(
        "gives a schedule an option that it has not",
        group("train", lr_scheduler_kwargs={"min": 3}),
        says=("`train.lr_scheduler_type: linear`", "min"),
    ),
    Case("mistypes when it is logged", group("train", logging_strategy="step"), says=("'step'", "'steps'")),
    Case("mistypes how much libraries say", group("train", log_level="dbug"), says=("`train.log_level`", "'debug'")),
    Case("shards the model in one process", group("train", fsdp=True), says=("`train.fsdp` needs several processes",)),
    Case(
        "names a file for accelerate that is not there",
        group("train", accelerator_config="nowhere.json"),
        says=("`train.accelerator_config`", "nowhere.json"),
    ),
    Case(
        "gives accelerate an option that it has not",
        group("train", accelerator_config={"split": True}),
        says=("`train` is not accepted", "split"),
    ),
    Case(
        "mistypes an option of recomputing activations",
        group("train", activation_checkpointing=True, activation_checkpointing_kwargs={"us_reentrant": True}),
        says=("`train.activation_checkpointing_kwargs`", "'use_reentrant'"),
    ),
    Case(
        "asks for precision that the machine has not",
        group("train", tf32=True),
        says=("`train` is not accepted", "tf32"),
    ),
    Case(
        "writes infinity inside an option",
        group("train", lr_scheduler_kwargs={"num_cycles": float("inf")}),
        says=("`train.lr_scheduler_kwargs.num_cycles`", "finite"),
    ),
    Case(
        "has less disk than the run needs",
        patch("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1)),
        says=("1 B free", "run.folder"),
    ),
]
