"""`wm lab perplexity`."""

from typing import Annotated, Any

from wm_plugin.cli import measures
from wm_plugin.cli.numbers import Count, bounds
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import progress, quiet
from wm_plugin.client.predict import load_model
from wm_plugin.errors import UserError
from wm_plugin.tokens.tokenizer import load_tokenizer


@prints(measures.show)
def perplexity(
    source: str,
    /,
    *more: str,
    model: str,
    before: str | None = None,
    limit: Count = 200,
    tokens: Annotated[int, bounds(2)] = 256,
    windows: Count = 1,
    field: str = "text",
    batch_size: Count = 4,
    seed: int | None = None,
    out: str | None = None,
) -> dict[str, Any]:
    """How well does a model predict general text, before and after a training?

    Perplexity of the beginnings of documents (ECHO: 200 of at most 256 tokens). A document is a text file, or a row of JSON
    lines, JSON or parquet. Needs the model's own probabilities, so that it takes no server.

    Args:
        source: A text file, a file of rows with a text, or a folder of these.
        more: Further ones.
        model: The model, in this process.
        before: The model that it was trained from: adds the difference, paired by document.
        limit: Most documents.
        tokens: Longest document, in tokens.
        windows: So many parts of --tokens tokens of a document.
        field: The field of a row that holds the text.
        batch_size: Texts at once.
        seed: Take random documents (default: the first ones).
        out: Folder that keeps each document's perplexity and the measures.
    """
    from wm_plugin.lab.evaluation import perplexity as scores
    from wm_plugin.lab.evaluation.measures import Evaluation

    quiet()
    sources, reader = [source, *more], scores.Reader(field)
    tokenizer = load_tokenizer(model, field="--model")
    documents = scores.drawn(progress(reader(sources), "documents"), limit, seed)
    texts = scores.tokenized(tokenizer, documents, tokens, windows)
    data = ", ".join(sources)
    if not texts.rows:
        raise UserError(f"{data}: no document has two tokens; name other texts")
    if before and scores.tokenized(load_tokenizer(before, field="--before"), documents, tokens, windows) != texts:
        raise UserError(
            "--before reads the texts in other tokens than --model, so that their perplexities cannot be compared"
        )
    folder = measures.open_folder(out, "perplexity", model, data)
    earlier = scores.score(load_model(before), texts.rows, batch_size=batch_size) if before else None
    after = scores.score(load_model(model), texts.rows, batch_size=batch_size)
    if short := len(documents) - len(set(texts.documents)):
        reader.failures["less than two tokens"] += short
    settings = {"before": before, "limit": limit, "tokens": tokens, "windows": windows, "field": field, "seed": seed}
    found = scores.measures(texts, after, earlier, seed or 0)
    result = Evaluation("perplexity", model, data, settings, found, dict(reader.failures))
    return measures.kept(result, scores.rows(texts, after, earlier), folder)
