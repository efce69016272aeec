# %% [markdown]
# # First steps
#
# A small language model learns the documentation of two Python libraries, one after the other: once plainly, and once
# with a method that protects what was learnt before. Months later it learns a third one. Everything is measured on
# the way. It takes about four minutes on two cores and needs no network: the text is the documentation of libraries
# that are installed with everlearn, and the base model (an encoder of 5 million parameters) comes with the package.

# %% tags=["parameters"]
STEPS = 30  # of training, for each domain
BLOCKS = 24  # of held-out text that is measured, for each domain
SAMPLES = 50  # of text on which the method measures what is important
FOLDER = "runs/notebook"

# %% [markdown]
# ## The text
#
# A *domain* is a corpus that is learnt in one go. This is one of its documents:

# %%
import json
import shutil

from everlearn_bench.suites import locate

shutil.rmtree(FOLDER, ignore_errors=True)  # a run that is there already would not be begun again
with open(locate("docs/networkx/train.jsonl"), encoding="utf-8") as file:
    print(json.loads(file.readline())["text"][:400])

# %% [markdown]
# ## Two runs
#
# A run needs a model, domains and a method; `train` takes transformers' `TrainingArguments` by their own names. A
# domain can be a path, as here, or texts in memory, or a split of a data set. General text belongs to no domain: it
# shows what is lost of what the base model knew.


# %%
from everlearn import ContinualLearner


def documents(name):
    return {"path": f"suite:docs/{name}/train.jsonl", "validation": f"suite:docs/{name}/validation.jsonl"}


common = {
    "model": {"path": "suite:docs/base", "config": {"hidden_dropout_prob": 0.0}},
    "domains": {name: documents(name) for name in ("networkx", "sympy")},
    "general": documents("general") | {"max_documents": 2000},
    "data": {"block_size": 128, "mask_probability": 0.3},
    "train": {"max_steps": STEPS, "per_device_train_batch_size": 16, "learning_rate": 5e-4, "logging_steps": 4},
    "evaluation": {"blocks": BLOCKS, "batch_size": 16},
}
plain = ContinualLearner(**common, methods="sequential", folder=f"{FOLDER}/plain").run()
plain

# %% [markdown]
# Plain training learns both domains, forgets some of the first while it learns the second, and drifts away from
# general text. The method that `everlearn init` writes holds the weights that mattered before, of the base model too:

# %%
recommended = {"name": "mas", "protect_base": True, "samples": SAMPLES, "normalise": "mean"}
recommended |= {"anchor": "separate", "follow": 0.4, "strength": 0.0215}
protected = ContinualLearner(**common, methods=recommended, folder=f"{FOLDER}/protected").run()
protected

# %% [markdown]
# ## Which one?
#
# Up is more learnt, to the right is more forgotten; on the dashed line a run has forgotten as much as it learnt. The
# pictures are matplotlib figures: change what you like, save them where you like.

# %%
from everlearn.report import compare
from everlearn.report.plots import plotted

both = compare([f"{FOLDER}/plain", f"{FOLDER}/protected"])
figure = plotted("tradeoff", both)
figure.set_size_inches(5, 3.6)
figure

# %%
figure = plotted("domains", both)
figure.set_size_inches(8, 2.6)
figure

# %% [markdown]
# All numbers are there as data frames, each with its 95 % interval.

# %%
summary = protected.to_pandas("summary")
summary[(summary.metric == "bits_per_byte") & summary.quantity.isin(["learnt", "forgotten", "general_drift"])]

# %% [markdown]
# `everlearn report runs/notebook/plain runs/notebook/protected --output comparison.html` writes the whole page. Two
# runs of one seed decide nothing: `everlearn sweep` runs several methods, seeds and orders.
#
# ## Months later
#
# One more domain, from the run folder alone. No earlier text is read: what the method remembers is in the folder, and
# so is the held-out text on which forgetting is measured.

# %%
later = ContinualLearner.open(f"{FOLDER}/protected").learn({"name": "pandas", **documents("pandas")})
figure = later.figure("matrix")
figure.set_size_inches(6, 3.2)
figure

# %% [markdown]
# ## The model
#
# Every stage is a plain transformers checkpoint. `export` writes one to give away: model, tokenizer and card, without
# text of yours and without paths of your machine. everlearn is not needed to use it.

# %%
from transformers import AutoModelForMaskedLM, AutoTokenizer

from everlearn import export

place = f"{FOLDER}/to-give-away"
export(f"{FOLDER}/protected/stage-03-pandas", place)
tokenizer, model = AutoTokenizer.from_pretrained(place), AutoModelForMaskedLM.from_pretrained(place).eval()
inputs = tokenizer(f"Return the shortest path between two{tokenizer.mask_token} of the graph.", return_tensors="pt")
scores = model(**inputs).logits[0, inputs.input_ids[0] == tokenizer.mask_token_id]
print([tokenizer.decode(token).strip() for token in scores[0].topk(5).indices])

# %% [markdown]
# Next: [your own recipe](../docs/quickstart.md), [the methods](../docs/methods.md), [what is
# measured](../docs/evaluation.md).
