"""Methods."""

from mistakes import Case, recipe

CASES = [
    Case("mistypes a method", recipe("method", "dsa"), says=("dsa", "das")),
    Case("lists no method", recipe("method", []), says=("`method`", "sequential", "[]")),
    Case(
        "calls a method as a paper does",
        recipe("method", "ncl"),
        says=("'ncl'", "In the DAS paper NCL is `sequential`"),
    ),
    Case(
        "gives a variant a value that the method has not",
        recipe("method", {"name": "hat_all", "test_gates": "none"}),
        says=("Method 'hat_all', option 'test_gates'", "none"),
    ),
    Case(
        "takes a prompt that is too long for the rows",
        recipe("method", {"name": "dap_prompt", "n_tokens": 100}),
        says=("100 prompt tokens and a text of 32", "data.block_size"),
    ),
    Case(
        "mistypes an option of a method",
        recipe("method", {"name": "migu", "treshold": 0.5}),
        says=("migu", "treshold", "threshold"),
    ),
    Case(
        "sets an option of a method out of its range",
        recipe("method", {"name": "migu", "threshold": 2}),
        says=("migu", "threshold", "2"),
    ),
    Case("lists a method twice", recipe("method", ["das", "das"]), says=("das", "method")),
    Case(
        "replays general text that is not named",
        recipe("method", {"name": "replay", "source": "general"}),
        says=("replay", "source", "general"),
    ),
    Case("writes null for the method", recipe("method", None), says=("`method.0`", "None")),
    Case("writes no for the method", recipe("method", False), says=("method", "False")),
    Case("writes a number for the method", recipe("method", 5), says=("method", "5")),
    # These sentences list every method that there is.
    Case("forgets the method's name", recipe("method", {"samples": 8}), says=("method", "`name`")),
    Case("writes a method's name in capitals", recipe("method", "DAS"), says=("'DAS'", "'das'")),
    Case("gives a method no name", recipe("method", ""), says=("method",)),
    Case("lists a list of methods", recipe("method", [["das"]]), says=("method",)),
    Case("leaves an item of the methods empty", recipe("method", ["das", None]), says=("method", "None")),
    Case(
        "writes a word for a method's number",
        recipe("method", {"name": "ewc", "strength": "high"}),
        says=("ewc", "strength", "high"),
    ),
    Case(
        "takes an endless strength",
        recipe("method", {"name": "ewc", "strength": float("inf")}),
        says=("strength", "finite"),
    ),
    Case(
        "takes a strength that is not a number",
        recipe("method", {"name": "ewc", "strength": float("nan")}),
        says=("strength", "finite"),
    ),
    Case(
        "takes a negative strength", recipe("method", {"name": "ewc", "strength": -1}), says=("ewc", "strength", "-1")
    ),
    Case(
        "answers true for a strength",
        recipe("method", {"name": "ewc", "strength": True}),
        says=("ewc", "strength", "true"),
    ),
    Case("measures on no rows", recipe("method", {"name": "ewc", "samples": 0}), says=("ewc", "samples", "0")),
    Case(
        "measures on half a row",
        recipe("method", {"name": "ewc", "samples": 0.5}),
        says=("ewc", "samples", "whole number"),
    ),
    Case(
        "replays more than everything",
        recipe("method", {"name": "replay", "share": 1.5}),
        says=("replay", "share", "1.5"),
    ),
    Case("trains an adapter of rank 0", recipe("method", {"name": "inc_lora", "r": 0}), says=("inc_lora", "'r'", "0")),
    Case(
        "chooses more experts than there are",
        recipe("method", {"name": "moe_lora", "experts": 2, "top_k": 3}),
        says=("moe_lora", "'top_k'", "3 of 2"),
    ),
    Case(
        "asks for a share and a sample of old text",
        recipe("method", {"name": "replay_sample", "share": 0.3}),
        says=("replay_sample", "'share'", "sample: 0.02"),
    ),
    Case(
        "gives one of a list of strengths a sign",
        recipe("method", {"name": "o_lora", "lambda_1": [0, -1]}),
        says=("o_lora", "lambda_1"),
    ),
]
