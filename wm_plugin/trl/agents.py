"""Sessions of an agent that is a program: OpenEnv captures what it asks the policy, and TRL's harness worker trains on it.

The agent finds the policy as it finds OpenAI: by OPENAI_BASE_URL and OPENAI_API_KEY. It runs with the rights of the trainer; one
that executes what the policy writes must bring its own container.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.tokens.message import Message, as_text

try:
    from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, TrainingTrace, VerifyResult
    from openenv.core.harness.capture.contract import to_training_trace
    from openenv.core.harness.capture.export import export_session
    from openenv.core.harness.capture.runner import CaptureServer
except ImportError:
    raise MissingExtraError("wm_plugin.trl.agents", "openenv", "openenv") from None

TASK = "{task}"  # in an argument of the command
_SILENT = 16  # episodes in a row without a request, after which the run stops
_STDERR = 2000  # bytes in a message

Reward = Callable[[Path, list[Message]], float | None]


class AgentSessions(ResourceSessionFactory):
    """Starts one process an episode: `HarnessRolloutWorker(harness_session_factory=partial(AgentSessions, command=…, …), …)`.

    Args:
        command: the program and its arguments. `{task}` in one of them is the text of the row's last message; all messages are
            JSON on the standard input. The process starts in an empty folder of its own.
        server: the policy's server, e.g. `http://localhost:8000/v1`; vLLM with `--return-tokens-as-token-ids` and
            `--logprobs-mode processed_logprobs`.
        model: the name by which the server knows the policy.
        reward: (the process's folder, the messages of its last request and the answer) -> the episode's reward; None: no reward.
        timeout: seconds of an episode. What was captured until then is trained on.
        max_requests: of an episode; 0: no limit.
        env: further environment variables of the process.
        sampling: by the worker.
    """

    def __init__(
        self,
        sampling: Mapping[str, Any],
        *,
        command: Sequence[str],
        server: str,
        model: str,
        reward: Reward,
        timeout: float = 600.0,
        max_requests: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(command, str) or not command:
            raise UserError(
                'command is a list of the program and its arguments; write ["my-agent", "--task", "{task}"]'
            )
        program = command[0]
        if not shutil.which(program, path=(env or {}).get("PATH")) or (
            os.sep in program and not os.path.isabs(program)
        ):
            raise UserError(
                f"command: there is no program {program!r}; write a name on the PATH or an absolute path, because the agent "
                "starts in an empty folder"
            )
        self.sampling, self.command, self.reward = dict(sampling), list(command), reward
        self.timeout, self.max_requests, self.env = timeout, max_requests, dict(env or {})
        self.silent = 0  # episodes without a request, up to now
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # it serves all addresses of this machine: whoever has no key of a session is refused
        self.capture = CaptureServer(llm_url=server, model=model, port=port, admin_key=secrets.token_hex())
        self.capture.start()

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> "AgentSession":  # noqa: ARG002
        return AgentSession(self, task, seed or 0)


class AgentSession(ResourceSession):
    """One episode of an agent."""

    def __init__(self, sessions: AgentSessions, task: Any, seed: int) -> None:
        self._sessions = sessions
        self._messages = [{"role": "user", "content": task}] if isinstance(task, str) else list(task)
        self._session = sessions.capture.registry.create(
            purpose="train", sampling=sessions.sampling, max_model_calls=sessions.max_requests
        )
        self._folder = tempfile.TemporaryDirectory(prefix="wm_agent_", ignore_cleanup_errors=True)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - until the session is closed
        text = as_text(self._messages[-1]["content"])
        url = f"http://127.0.0.1:{sessions.capture.port}/v1"
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(self._messages).encode())
            stdin.seek(0)
            try:
                self._process = subprocess.Popen(
                    [argument.replace(TASK, text) for argument in sessions.command],
                    cwd=self._folder.name,
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    env={
                        **os.environ,
                        "OPENAI_BASE_URL": url,
                        "OPENAI_API_BASE": url,  # of LiteLLM and older clients
                        "OPENAI_API_KEY": self._session.session_id,
                        "WM_SEED": str(seed),
                        **sessions.env,
                    },
                    start_new_session=True,
                )
            except OSError:
                self._clean()
                raise

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        try:
            return self._process.wait(self._sessions.timeout if timeout_s is None else timeout_s)
        except subprocess.TimeoutExpired as error:
            self._kill()
            raise TimeoutError(f"the agent ran longer than {error.timeout:g} s") from None

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the captured requests.

        Raises:
            ValueError: many episodes in a row had none, or their tokens are not complete.
        """
        graph = self._session.graph
        if graph.nodes():
            self._sessions.silent = 0
            return to_training_trace(graph, export_session(self._session))
        self._sessions.silent += 1
        if self._sessions.silent >= _SILENT:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _STDERR))
            said = self._stderr.read().decode(errors="replace").strip()
            raise ValueError(
                f"{self._sessions.command[0]} asked the policy nothing in {_SILENT} episodes in a row; it must use "
                f"OPENAI_BASE_URL and OPENAI_API_KEY. Exit code {self._process.returncode}, and it wrote: {said or 'nothing'}"
            )
        return TrainingTrace(turns=[])

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:  # noqa: ARG002
        if not self._session.graph.nodes():
            return VerifyResult(env_reward=None, done=True)
        return VerifyResult(env_reward=self._sessions.reward(Path(self._folder.name), transcript), done=True)

    def close(self) -> None:
        self._kill()
        self._clean()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # and what it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _clean(self) -> None:
        self._sessions.capture.registry.delete(self._session.session_id)
        self._stderr.close()
        self._folder.cleanup()

    # the agent has its own prompt and tools
    def initial_messages(self) -> list[Message]:
        return self._messages

    def list_tools(self) -> list[Any]:
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:  # noqa: ARG002
        return ToolResult(error=f"the agent calls its tools by itself, {name} too")
