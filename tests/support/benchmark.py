"""AgentWorldBench in small: rows as its files have them, and a checkout of its repository, in words of our own."""

import json

DOMAINS = ("android", "mcp", "os", "search", "swe", "terminal", "web")
CONFIG = '''
raise SystemExit("the checkout was run")
SCORE_DIMENSIONS = ["format"]
TASK_CONFIGS = {domains}
JUDGE_USER_PROMPT = """{{context}}

{{world_model_input}}
== {{predicted_observation}} ==
{{ground_truth}}
Score like {{{{"scores": {{{{...}}}}}}}}. """
'''
EVALUATOR = """
raise SystemExit("the checkout was run")
def build_judge_messages(job, model_output, judge_system_prompts):
    context = ""
    for i in range(3):
        context += "x"
    if context:
        context = f"Before:\\n\\n{context}"
    return TEMPLATE.format(
        context=context,
        world_model_input=f"Now:\\n\\n{current_prompt}",
        predicted_observation=f"predicted [{model_output_clean}]",
        ground_truth=f"real [{ground_truth_clean}]",
    ).strip()
"""


def checkout(folder):
    """A checkout whose code ends the process if it is run."""
    (folder / "eval" / "lwm_eval_utils").mkdir(parents=True)
    domains = {
        name: {
            "response_marker": "**Environment Observation:**",
            "response_tag": "predicted_observation",
            "judge_response_tag": "final_evaluation",
            "judge_system_prompt_path": f"prompts/{name}/judge_system_prompt.txt",
        }
        for name in DOMAINS
    }
    (folder / "eval" / "lwm_eval_utils" / "task_configs.py").write_text(CONFIG.format(domains=repr(domains)))
    (folder / "eval" / "eval.py").write_text(EVALUATOR)
    for name in DOMAINS:
        (folder / "prompts" / name).mkdir(parents=True)
        (folder / "prompts" / name / "judge_system_prompt.txt").write_text(f"You judge {name}.\n")
    return folder


def action(text):
    return f"### Turn\n**Action:**\n```\n{text}\n```\n"


def observed(text):
    return f"**Environment Observation:**\n{text}"


def row(domain="terminal", number=1, turns=(("ls", "a.txt"), ("cat a.txt", "hello")), turn=None, system="Simulate."):
    """The turn is the last one unless it is told."""
    return {
        "task": domain,
        "id": number,
        "prompt": [action(text) for text, _ in turns],
        "response": [observed(text) for _, text in turns],
        "system_str": system,
        "turn_idx": len(turns) if turn is None else turn,
        "total_turns": len(turns),
    }


def write(folder, rows):
    """The rows as the benchmark's files, one a domain."""
    folder.mkdir(exist_ok=True)
    for domain in {one["task"] for one in rows}:
        lines = [json.dumps(one) for one in rows if one["task"] == domain]
        (folder / f"{domain}_test.jsonl").write_text("\n".join(lines) + "\n")
    return folder
