"""The datasets of the tasks on the Hugging Face hub: names, splits, fields and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HubSet:
    """A dataset on the hub from which examples of a task are sampled in place of the published ones.

    Attributes:
        path: hub id.
        text: template of the published text, with fields of the dataset in braces.
        subset: configuration; None if the dataset has only one.
        test: the split for testing: the validation split if the labels of the test split are hidden.
        label: field of the label.
        labels: label in the dataset → published label, if they differ by more than case, blanks and punctuation.
        step: the label is a value, rounded to a multiple of this; None if it is a class.
    """

    path: str
    text: str
    subset: str | None = None
    test: str = "test"
    label: str = "label"
    labels: Mapping[str, str] = field(default_factory=dict)
    step: float | None = None

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"'{self.path}'" + (f" ({self.subset})" if self.subset else "")


GLUE, SUPER_GLUE = "nyu-mll/glue", "aps/super_glue"
_PAIR = "sentence 1: {premise}\nsentence 2: {hypothesis}"
_CHOICE = 'Which sentence is the {question} of "{premise}"? Choose one between A and B.\nA: {choice1}\nB: {choice2}'
_SENTENCES = "sentence 1: {sentence1}\nsentence 2: {sentence2}"
_STARS = ("very negative", "negative", "neutral", "positive", "very positive")

SETS: dict[str, HubSet] = {
    "dbpedia": HubSet("fancyzhx/dbpedia_14", "Title: {title}\nText: {content}\n"),
    # Its makers' five stars; `amazon_polarity` has two classes, and `amazon_reviews_multi` was taken down.
    "amazon": HubSet(
        "yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes",
        "Title: {review_title}\nText: {review_text}\n",
        label="class_index",
        labels={str(star): label for star, label in enumerate(_STARS, 1)},
    ),
    "yahoo": HubSet(
        "community-datasets/yahoo_answers_topics",
        "Title: {question_title}\nText: {question_content} {best_answer}\n",
        label="topic",
    ),
    # The set has title and text in one field.
    "agnews": HubSet("fancyzhx/ag_news", "Text: {text}\n", labels={"Sci/Tech": "Science or Technology"}),
    "mnli": HubSet(GLUE, _PAIR, "mnli", "validation_matched"),
    "cb": HubSet(SUPER_GLUE, _PAIR, "cb", "validation"),
    "wic": HubSet(SUPER_GLUE, "word: {word}\n{sentence1}\n{sentence2}", "wic", "validation"),
    "copa": HubSet(SUPER_GLUE, _CHOICE, "copa", "validation", labels={"choice1": "A", "choice2": "B"}),
    "qqp": HubSet(
        GLUE,
        "first sentence: {question1}\nsecond sentence: {question2}",
        "qqp",
        "validation",
        labels={"not_duplicate": "False", "duplicate": "True"},
    ),
    "boolqa": HubSet(SUPER_GLUE, "question: {question}\npassage: {passage}", "boolq", "validation"),
    "rte": HubSet(
        GLUE,
        _SENTENCES,
        "rte",
        "validation",
        labels={"not_entailment": "contradiction"},
    ),
    "imdb": HubSet("stanfordnlp/imdb", "{text}", labels={"neg": "Bad", "pos": "Good"}),
    "yelp": HubSet(
        "Yelp/yelp_review_full",
        "Text: {text}\n",
        labels=dict(zip(("1 star", "2 star", "3 stars", "4 stars", "5 stars"), _STARS, strict=True)),
    ),
    "sst-2": HubSet(GLUE, "Text: {sentence}", "sst2", "validation", labels={"negative": "Bad", "positive": "Good"}),
    "multirc": HubSet(
        SUPER_GLUE, "paragraph: {paragraph}\nquestion: {question}\ncandidate answer: {answer}", "multirc", "validation"
    ),
    "cola": HubSet(GLUE, "Text: {sentence}", "cola", "validation"),
    "mrpc": HubSet(GLUE, _SENTENCES, "mrpc", "validation", labels={"not_equivalent": "False", "equivalent": "True"}),
    "sts-b": HubSet(GLUE, _SENTENCES, "stsb", "validation", step=0.2),
    "qnli": HubSet(
        GLUE,
        "question: {question}\nsentence: {sentence}",
        "qnli",
        "validation",
        labels={"not_entailment": "False", "entailment": "True"},
    ),
    "wnli": HubSet(GLUE, _SENTENCES, "wnli", "validation", labels={"not_entailment": "contradiction"}),
}
"""By task; ids and fields as of the sets' cards. Texts have the form of the published files, line ends included."""
