"""Convert examples to prompts.

The form is that of the released code of O-LoRA and MIGU: task and dataset by name, one instruction, the options, the
text, and "Answer:". The wording of the instructions is ours.
"""

from __future__ import annotations

from everlearn_bench.suites.continual_tasks.tasks import TextTask

INSTRUCTIONS = {
    "NLI": "Decide how the second sentence follows from the first one, and choose the answer from the option.",
    "PI": "Decide whether both sentences say the same, and choose the answer from the option.",
    "CoLA": "Decide whether the text is a sentence of good English, and choose the answer from the option.",
    "QNLI": "Decide whether the sentence answers the question, and choose the answer from the option.",
    "STS": "Decide how similar both sentences are, from 0.0 (not at all) to 5.0 (they say the same).",
    "QQP": "Decide whether both sentences ask for the same thing, and choose the answer from the option.",
    "SC": "Decide which opinion the writer of the text has, and choose the answer from the option.",
    "TC": "Decide what the text is about, and choose the answer from the option.",
    "BoolQA": "Decide with the help of the passage what the question must be answered, and choose it from the option.",
    "MultiRC": "Decide with the help of the paragraph whether the candidate answers the question, and choose it from "
    "the option.",
    "SUBJ": "Decide whether the text tells what happens or what its writer thinks, and choose it from the option.",
    "QC": "Decide what the question asks for, and choose the answer from the option.",
    "WiC": "Decide whether the word means the same in both sentences, and choose the answer from the option.",
}
"""By group; COPA, whose text asks the question itself and lists both answers, has neither instruction nor options."""
WITHOUT_OPTIONS = ("STS",)
"""Groups whose labels are too many to list."""
ENDING = "\nAnswer:"


def prompt(task: TextTask, text: str, names: bool = True) -> str:
    """Return the input of the model before the answer.

    Args:
        task: the task of the example.
        text: the text of the example.
        names: whether to begin with the names of task and dataset. The published runs do, in training and at test time,
            so a model that is "not told the task" reads it nevertheless.
    """
    begin = f"Task:{task.group}\nDataset:{task.dataset}\n" if names else ""
    if task.group in INSTRUCTIONS:
        begin += f"{INSTRUCTIONS[task.group]}\n"
    if task.group in INSTRUCTIONS and task.group not in WITHOUT_OPTIONS:
        begin += f"Option: {', '.join(task.labels)} \n"
    return f"{begin}{text}{ENDING}"
