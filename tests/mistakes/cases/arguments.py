"""Training arguments, and their numbers."""

import shutil

from mistakes import Case, both, domain, group, patch, recipe, without


def train(**changes: object) -> object:
    return group("train", **changes)


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
    Case("mistypes a strategy", train(save_strategy="step"), says=("train.save_strategy", "'steps'")),
    Case("saves the best checkpoint", train(save_strategy="best"), says=("train.save_strategy", "best")),
    Case("uses CUDA by name", train(use_cuda=True), says=("train.use_cuda", "A GPU is used wherever there is one")),
    Case("trains for 0 steps", train(max_steps=0), says=("`train.max_steps` must be above 0", "num_train_epochs")),
    Case("trains for -5 steps", train(max_steps=-5), says=("`train.max_steps` must be above 0", "-5")),
    Case(
        "trains a domain for 0 steps", domain(train={"max_steps": 0}), says=("`domains.a.train.max_steps`", "above 0")
    ),
    Case("trains for half a step", train(max_steps=0.5), says=("train.max_steps", "0.5")),
    Case("trains for four steps, in words", train(max_steps="four"), says=("train.max_steps", "four")),
    Case("trains for true steps", train(max_steps=True), says=("train.max_steps", "True")),
    Case("trains for null steps", train(max_steps=None), says=("train.max_steps", "None")),
    Case("trains for 10 to the 30th steps", train(max_steps=10**30), says=("train.max_steps", "2,147,483,647")),
    Case("trains for 0 epochs", train(num_train_epochs=0), says=("`train.num_train_epochs` must be above 0",)),
    Case("trains for -1 epochs", train(num_train_epochs=-1), says=("`train.num_train_epochs` must be above 0",)),
    Case("trains for endless epochs", train(num_train_epochs=float("inf")), says=("train.num_train_epochs", "finite")),
    Case("takes a learning rate of 0", train(learning_rate=0), says=("`train.learning_rate` must be above 0",)),
    Case("takes a negative learning rate", train(learning_rate=-1e-4), says=("`train.learning_rate` must be above 0",)),
    Case(
        "takes a learning rate that is not a number",
        train(learning_rate=float("nan")),
        says=("train.learning_rate", "finite"),
    ),
    Case("writes a comma into a learning rate", train(learning_rate="1,5e-4"), says=("train.learning_rate", "1,5e-4")),
    Case(
        "gives a domain a learning rate of 0",
        domain(train={"learning_rate": 0}),
        says=("`domains.a.train.learning_rate`", "above 0"),
    ),
    Case(
        "takes batches of 0 rows",
        train(per_device_train_batch_size=0),
        says=("train.per_device_train_batch_size", "above 0"),
    ),
    Case(
        "takes batches of -8 rows",
        train(per_device_train_batch_size=-8),
        says=("train.per_device_train_batch_size", "above 0"),
    ),
    Case(
        "accumulates nothing",
        train(gradient_accumulation_steps=0),
        says=("train.gradient_accumulation_steps", "above 0"),
    ),
    Case("saves every 0 steps", train(save_steps=0), says=("`train.save_steps` must be above 0",)),
    Case("logs every 0 steps", train(logging_steps=0), says=("`train.logging_steps` must be above 0",)),
    Case("logs every -10 steps", train(logging_steps=-10), says=("`train.logging_steps` must be above 0",)),
    Case("keeps 0 checkpoints", train(save_total_limit=0), says=("`train.save_total_limit` must be above 0",)),
    Case("warms up for -10 steps", train(warmup_steps=-10), says=("`train.warmup_steps` must be 0 or more",)),
    Case("takes a negative weight decay", train(weight_decay=-0.1), says=("`train.weight_decay` must be 0 or more",)),
    Case(
        "clips gradients to less than nothing",
        train(max_grad_norm=-1),
        says=("`train.max_grad_norm` must be 0 or more",),
    ),
    Case("takes a beta of 1", train(adam_beta2=1), says=("`train.adam_beta2` must be below 1",)),
    Case("takes a beta of -0.9", train(adam_beta1=-0.9), says=("`train.adam_beta1` must be 0 or more",)),
    Case("takes an epsilon of 0", train(adam_epsilon=0.0), says=("`train.adam_epsilon` must be above 0",)),
    Case("answers yes where bf16 is asked for", train(bf16="yes"), says=("train.bf16", "yes")),
    Case("asks for two precisions", train(bf16=True, fp16=True), says=("fp16", "bf16")),
    Case("names a folder for the trainer", train(output_dir="out"), says=("train.output_dir", "run.folder")),
    Case("evaluates inside the trainer", train(eval_strategy="steps"), says=("train.eval_strategy", "evaluation")),
    Case(
        "loads the best model at the end",
        train(load_best_model_at_end=True),
        says=("train.load_best_model_at_end", "evaluation"),
    ),
    Case("pushes to the hub while training", train(push_to_hub=True), says=("train.push_to_hub", "everlearn export")),
    Case("loads data with workers", train(dataloader_num_workers=4), says=("train.dataloader_num_workers",)),
    Case("groups rows by length", train(group_by_length=True), says=("train.group_by_length",)),
    Case("smooths labels", train(label_smoothing_factor=0.1), says=("train.label_smoothing_factor",)),
    Case(
        "compiles with an unknown backend",
        train(torch_compile_backend="inducter"),
        says=("train.torch_compile_backend", "inducter"),
    ),
    Case("trains with DeepSpeed", train(deepspeed="ds.json"), says=("train.deepspeed", "fsdp")),
    Case("looks for a batch size", train(auto_find_batch_size=True), says=("train.auto_find_batch_size",)),
    Case("resumes by a training argument", train(resume_from_checkpoint="x"), says=("everlearn resume",)),
    Case(
        "changes the precision for one domain",
        domain(train={"bf16": True}),
        says=("domains.a.train.bf16", "train.bf16"),
    ),
    Case(
        "mistypes a domain's training argument",
        domain(train={"learning_rat": 1e-4}),
        says=("domains.a.train.learning_rat", "learning_rate"),
    ),
    Case(
        "changes the optimizer that is carried on",
        both(recipe("optimizer", "carry"), domain(1, train={"optim": "adafactor"})),
        says=("domains.b.train.optim", "carry"),
    ),
    Case("writes a number as a training argument's name", recipe("train", {"max_steps": 4, "": 3}), says=("train.",)),
]
