"""The papers' constants, which the recipes of both hosts have."""

ECHO = {"model": "Qwen/Qwen2.5-7B-Instruct", "completions": 256, "coeff": 0.05}
CODE = ("submit_code", "run_code")
FORTH = {
    "model": "Qwen/Qwen3-4B-Instruct-2507",
    "completions": 128,
    "group": 8,
    "coeff": 0.5,
    "tools": None,
    "zero_variance_groups": "refill",
    "steps": 1000,
    "rate": 1e-6,
    "optimizer": "muon",
    "turns": 200,
    "turn_tokens": 8192,
    "response": 32768,
}
LONGER = {"completions": 256, "group": 16, "coeff": 0.05, "steps": 500}
TERMINAL = {
    "model": "Qwen/Qwen3-8B",
    "group": 16,
    "coeff": 0.05,
    "temperature": 1.0,
    "turns": 12,
}  # ECHO's first paper: group 8 to 16
WMACT = {
    "completions": 256,
    "group": 8,
    "coeff": 0.0,
    "rate": 1e-6,
    "warmup": 20,
    "weight_decay": 0.0,
    "temperature": 1.0,
    "turn_tokens": 12288,
    "response": 16384,
    "protocol": "tags",
    "turn_budget": (30, 100),
}
POLICY = {"completions": 128, "group": 8, "coeff": 0.0}
CONSTANTS = {
    "echo_grpo": ECHO,
    "echo_gspo": ECHO,
    "echo_forth_all": FORTH,
    "echo_forth_code": {**FORTH, "tools": CODE},
    "echo_forth_code_500": {**FORTH, **LONGER, "tools": CODE},
    "echo_forth_code_glm": {
        **(FORTH | LONGER | {"tools": CODE}),
        "model": "zai-org/GLM-4.5-Air",
        "completions": 128,
        "coeff": 0.005,
        "optimizer": "sign_sgd",
    },
    "echo_deepdive": {**FORTH, **LONGER},
    "echo_swe": {**FORTH, **LONGER, "turns": 20, "response": 16384, "temperature": 1.0},
    "echo_terminal_grpo": TERMINAL,
    "echo_terminal_gspo": TERMINAL,
    "wmact_grpo": WMACT,
    "policy_alfworld": {**POLICY, "model": "Qwen/Qwen2.5-7B-Instruct", "turns": 15, "steps": 300},
    "prediction_textworld": {**POLICY, "model": "Qwen/Qwen2.5-7B-Instruct", "turns": 20, "steps": 300},
    "policy_tau2": {**POLICY, "model": "Qwen/Qwen3-8B", "turns": 30, "steps": 200},
}
# WMAct's held-out sets, each of 256 rows, in many turns and, with `_single` behind the name, in one
LEVELS = {
    "sokoban": "standard",
    "sokoban_hard-1": "hard-1",
    "sokoban_hard-2": "hard-2",
    "maze": "standard",
    "maze_hard-1": "hard-1",
    "taxi_256_over_60": "standard",
}
EVALUATED = ("forth", "deepdive", "wordle", "sql")  # the worlds of ECHO's runs on Forth
# of each of RWML's worlds: the model, completions a prompt, and the distance below which a prediction is right
RWML = {"alfworld": ("Qwen/Qwen2.5-7B-Instruct", 8, 0.2), "tau2": ("Qwen/Qwen3-8B", 16, 0.4)}
# of each supervised training: the learning rate, rows of a step, epochs, and the model
SFT = {
    "agent_sft": (1e-5, 128, 5, "Qwen/Qwen2.5-7B-Instruct"),
    "wm_cpt_agentworld": (1e-5, 128, 1, "Qwen/Qwen2.5-7B"),
    "wm_sft_agentworld": (1e-5, 128, 2, "Qwen/Qwen2.5-7B-Instruct"),
    "wm_sft_rwml": (2e-6, 32, 2, "Qwen/Qwen2.5-7B-Instruct"),
    "wm_sft_word2world": (1e-5, 128, 5, "Qwen/Qwen2.5-7B"),
}
