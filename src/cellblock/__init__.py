"""cellblock: sandboxed, stateful IPython sessions for AI agents.

The names below are loaded on first use, so that ``import cellblock`` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellblock.common.environments import Environment as Environment
    from cellblock.common.secret import Secret as Secret
    from cellblock.common.terminal import printable as printable
    from cellblock.common.version import __version__ as __version__
    from cellblock.errors import AccessError as AccessError
    from cellblock.errors import BusyError as BusyError
    from cellblock.errors import CellblockError as CellblockError
    from cellblock.errors import CheckpointError as CheckpointError
    from cellblock.errors import CodeExecutionError as CodeExecutionError
    from cellblock.errors import ConflictError as ConflictError
    from cellblock.errors import CustodianError as CustodianError
    from cellblock.errors import DaemonError as DaemonError
    from cellblock.errors import ExecutionTimeoutError as ExecutionTimeoutError
    from cellblock.errors import FilesError as FilesError
    from cellblock.errors import InterpreterError as InterpreterError
    from cellblock.errors import InvalidInputError as InvalidInputError
    from cellblock.errors import KernelDiedError as KernelDiedError
    from cellblock.errors import LaunchError as LaunchError
    from cellblock.errors import McpServerError as McpServerError
    from cellblock.errors import MovingError as MovingError
    from cellblock.errors import NotFoundError as NotFoundError
    from cellblock.errors import NotPlacedError as NotPlacedError
    from cellblock.errors import NotRunError as NotRunError
    from cellblock.errors import OutcomeUnknownError as OutcomeUnknownError
    from cellblock.errors import PreloadError as PreloadError
    from cellblock.errors import ProcessError as ProcessError
    from cellblock.errors import ProtocolError as ProtocolError
    from cellblock.errors import SandboxError as SandboxError
    from cellblock.errors import SessionLostError as SessionLostError
    from cellblock.errors import SnapshotError as SnapshotError
    from cellblock.errors import StateError as StateError
    from cellblock.errors import StoreError as StoreError
    from cellblock.errors import ToolRunnerError as ToolRunnerError
    from cellblock.errors import UnknownCheckpointError as UnknownCheckpointError
    from cellblock.errors import UnsupportedError as UnsupportedError
    from cellblock.fronts.client.async_client import AsyncClient as AsyncClient
    from cellblock.fronts.client.client import Client as Client
    from cellblock.fronts.executor.executor import CodeExecutor as CodeExecutor
    from cellblock.fronts.executor.sync import SyncApprovalRequest as SyncApprovalRequest
    from cellblock.fronts.executor.sync import SyncCodeExecutor as SyncCodeExecutor
    from cellblock.fronts.executor.sync import SyncFiles as SyncFiles
    from cellblock.fronts.functions.session_functions import adopt as adopt
    from cellblock.fronts.functions.session_functions import change_network as change_network
    from cellblock.fronts.functions.session_functions import checkpoint as checkpoint
    from cellblock.fronts.functions.session_functions import checkpoints as checkpoints
    from cellblock.fronts.functions.session_functions import clone_apply as clone_apply
    from cellblock.fronts.functions.session_functions import clone_diff as clone_diff
    from cellblock.fronts.functions.session_functions import clone_fetch as clone_fetch
    from cellblock.fronts.functions.session_functions import destroy as destroy
    from cellblock.fronts.functions.session_functions import diff as diff
    from cellblock.fronts.functions.session_functions import drop_checkpoint as drop_checkpoint
    from cellblock.fronts.functions.session_functions import exec_process as exec_process
    from cellblock.fronts.functions.session_functions import execute as execute
    from cellblock.fronts.functions.session_functions import execute_with_retry as execute_with_retry
    from cellblock.fronts.functions.session_functions import export as export
    from cellblock.fronts.functions.session_functions import file_info as file_info
    from cellblock.fronts.functions.session_functions import file_versions as file_versions
    from cellblock.fronts.functions.session_functions import fork as fork
    from cellblock.fronts.functions.session_functions import get_or_create as get_or_create
    from cellblock.fronts.functions.session_functions import list_files as list_files
    from cellblock.fronts.functions.session_functions import list_kernels as list_kernels
    from cellblock.fronts.functions.session_functions import load as load
    from cellblock.fronts.functions.session_functions import make_folder as make_folder
    from cellblock.fronts.functions.session_functions import network as network
    from cellblock.fronts.functions.session_functions import processes as processes
    from cellblock.fronts.functions.session_functions import read_file as read_file
    from cellblock.fronts.functions.session_functions import read_process as read_process
    from cellblock.fronts.functions.session_functions import redo as redo
    from cellblock.fronts.functions.session_functions import remove_file as remove_file
    from cellblock.fronts.functions.session_functions import rename_file as rename_file
    from cellblock.fronts.functions.session_functions import resize_process as resize_process
    from cellblock.fronts.functions.session_functions import restart as restart
    from cellblock.fronts.functions.session_functions import restore as restore
    from cellblock.fronts.functions.session_functions import restore_trash as restore_trash
    from cellblock.fronts.functions.session_functions import save as save
    from cellblock.fronts.functions.session_functions import signal_process as signal_process
    from cellblock.fronts.functions.session_functions import spawn_process as spawn_process
    from cellblock.fronts.functions.session_functions import status as status
    from cellblock.fronts.functions.session_functions import stop_process as stop_process
    from cellblock.fronts.functions.session_functions import trash as trash
    from cellblock.fronts.functions.session_functions import undo as undo
    from cellblock.fronts.functions.session_functions import variables as variables
    from cellblock.fronts.functions.session_functions import wipe as wipe
    from cellblock.fronts.functions.session_functions import write_file as write_file
    from cellblock.fronts.functions.session_functions import write_process as write_process
    from cellblock.fronts.kernel_mgr.client import ExecutionError as ExecutionError
    from cellblock.fronts.kernel_mgr.client import KernelClient as KernelClient
    from cellblock.fronts.kernel_mgr.server import KernelGateway as KernelGateway
    from cellblock.fronts.rollouts.pool import Pool as Pool
    from cellblock.fronts.rollouts.rollout import Rollout as Rollout
    from cellblock.host import Filesystem as Filesystem
    from cellblock.host import Host as Host
    from cellblock.host import Limits as Limits
    from cellblock.host import Network as Network
    from cellblock.host import Policy as Policy
    from cellblock.host import Resources as Resources
    from cellblock.host import Session as Session
    from cellblock.host import SessionOptions as SessionOptions
    from cellblock.host.checkpoints.checkpoint import Checkpoint as Checkpoint
    from cellblock.host.options import Exact as Exact
    from cellblock.host.options import Rolling as Rolling
    from cellblock.host.programs.process import Process as Process
    from cellblock.model import AttemptSnapshot as AttemptSnapshot
    from cellblock.model import CodeExecutionChunk as CodeExecutionChunk
    from cellblock.model import CodeExecutionResult as CodeExecutionResult
    from cellblock.model import Completions as Completions
    from cellblock.model import ErrorInfo as ErrorInfo
    from cellblock.model import ExecutionResult as ExecutionResult
    from cellblock.model import HistoryEntry as HistoryEntry
    from cellblock.model import OutputItem as OutputItem
    from cellblock.model.checkpoints import Changes as Changes
    from cellblock.model.checkpoints import CheckpointRecord as CheckpointRecord
    from cellblock.model.checkpoints import FileAction as FileAction
    from cellblock.model.checkpoints import FileVersions as FileVersions
    from cellblock.model.checkpoints import StateChanges as StateChanges
    from cellblock.model.checkpoints import TrashEntry as TrashEntry
    from cellblock.model.checkpoints import Undone as Undone
    from cellblock.model.decisions import CommandRequest as CommandRequest
    from cellblock.model.decisions import Decision as Decision
    from cellblock.model.files import FileChange as FileChange
    from cellblock.model.files import FileInfo as FileInfo
    from cellblock.model.network import SessionNetwork as SessionNetwork
    from cellblock.model.programs import ExecResult as ExecResult
    from cellblock.model.programs import ProcessInfo as ProcessInfo
    from cellblock.model.programs import ProcessOutput as ProcessOutput
    from cellblock.model.programs import ProgramOutput as ProgramOutput
    from cellblock.model.saving import LeftOut as LeftOut
    from cellblock.model.saving import LoadReport as LoadReport
    from cellblock.model.saving import SaveReport as SaveReport
    from cellblock.model.sessions import ExecutionEvent as ExecutionEvent
    from cellblock.model.sessions import ExecutionRecord as ExecutionRecord
    from cellblock.model.sessions import KernelRecord as KernelRecord
    from cellblock.model.sessions import PendingApproval as PendingApproval
    from cellblock.model.sessions import Permission as Permission
    from cellblock.model.sessions import SessionRecord as SessionRecord
    from cellblock.model.variables import ChangedVariable as ChangedVariable
    from cellblock.model.variables import Variable as Variable
    from cellblock.model.variables import VariableChanges as VariableChanges
    from cellblock.tools.apigen.generate import generate_mcp_sources as generate_mcp_sources
    from cellblock.tools.approvals.elicitation import Elicitation as Elicitation
    from cellblock.tools.approvals.request import ApprovalRequest as ApprovalRequest
    from cellblock.tools.approvals.rules import Rule as Rule
    from cellblock.tools.approvals.rules import Rules as Rules
    from cellblock.tools.calling.runner import ToolRunner as ToolRunner
    from cellblock.tools.registry.approvals import Approvals as Approvals
    from cellblock.tools.serving.approval_channel import ApprovalChannel as ApprovalChannel
    from cellblock.tools.serving.approval_channel import ApprovalClient as ApprovalClient
    from cellblock.tools.serving.tool_server import ToolServer as ToolServer

_HOME = {
    "__version__": "common.version",
    "generate_mcp_sources": "tools.apigen.generate",
    "CellblockError": "errors",
    "Environment": "common.environments",
    "CheckpointError": "errors",
    "CodeExecutionError": "errors",
    "CustodianError": "errors",
    "ExecutionTimeoutError": "errors",
    "FilesError": "errors",
    "InterpreterError": "errors",
    "InvalidInputError": "errors",
    "KernelDiedError": "errors",
    "LaunchError": "errors",
    "McpServerError": "errors",
    "PreloadError": "errors",
    "ProcessError": "errors",
    "ProtocolError": "errors",
    "SandboxError": "errors",
    "Secret": "common.secret",
    "SessionLostError": "errors",
    "SnapshotError": "errors",
    "StateError": "errors",
    "StoreError": "errors",
    "ToolRunnerError": "errors",
    "UnknownCheckpointError": "errors",
    "UnsupportedError": "errors",
    "CodeExecutor": "fronts.executor.executor",
    "ExecutionError": "fronts.kernel_mgr.client",
    "KernelClient": "fronts.kernel_mgr.client",
    "KernelGateway": "fronts.kernel_mgr.server",
    "Host": "host",
    "Filesystem": "host",
    "Limits": "host",
    "Network": "host",
    "Policy": "host",
    "Resources": "host",
    "Session": "host",
    "SessionOptions": "host",
    "Checkpoint": "host.checkpoints.checkpoint",
    "Exact": "host.options",
    "Pool": "fronts.rollouts.pool",
    "Rollout": "fronts.rollouts.rollout",
    "Process": "host.programs.process",
    "file_info": "fronts.functions.session_functions",
    "list_files": "fronts.functions.session_functions",
    "make_folder": "fronts.functions.session_functions",
    "read_file": "fronts.functions.session_functions",
    "remove_file": "fronts.functions.session_functions",
    "rename_file": "fronts.functions.session_functions",
    "write_file": "fronts.functions.session_functions",
    "exec_process": "fronts.functions.session_functions",
    "processes": "fronts.functions.session_functions",
    "read_process": "fronts.functions.session_functions",
    "resize_process": "fronts.functions.session_functions",
    "signal_process": "fronts.functions.session_functions",
    "spawn_process": "fronts.functions.session_functions",
    "stop_process": "fronts.functions.session_functions",
    "write_process": "fronts.functions.session_functions",
    "ProcessOutput": "model.programs",
    "Rolling": "host.options",
    "FileAction": "model.checkpoints",
    "TrashEntry": "model.checkpoints",
    "Undone": "model.checkpoints",
    "CheckpointRecord": "model.checkpoints",
    "FileChange": "model.files",
    "FileInfo": "model.files",
    "ExecResult": "model.programs",
    "ProcessInfo": "model.programs",
    "ProgramOutput": "model.programs",
    "AttemptSnapshot": "model",
    "CodeExecutionChunk": "model",
    "CodeExecutionResult": "model",
    "CommandRequest": "model.decisions",
    "Completions": "model",
    "Decision": "model.decisions",
    "ErrorInfo": "model",
    "HistoryEntry": "model",
    "OutputItem": "model",
    "Approvals": "tools.registry.approvals",
    "printable": "common.terminal",
    "ApprovalRequest": "tools.approvals.request",
    "Elicitation": "tools.approvals.elicitation",
    "ApprovalChannel": "tools.serving.approval_channel",
    "ApprovalClient": "tools.serving.approval_channel",
    "Rule": "tools.approvals.rules",
    "Rules": "tools.approvals.rules",
    "ToolRunner": "tools.calling.runner",
    "ToolServer": "tools.serving.tool_server",
    "get_or_create": "fronts.functions.session_functions",
    "execute": "fronts.functions.session_functions",
    "execute_with_retry": "fronts.functions.session_functions",
    "destroy": "fronts.functions.session_functions",
    "list_kernels": "fronts.functions.session_functions",
    "status": "fronts.functions.session_functions",
    "restart": "fronts.functions.session_functions",
    "wipe": "fronts.functions.session_functions",
    "change_network": "fronts.functions.session_functions",
    "network": "fronts.functions.session_functions",
    "SessionNetwork": "model.network",
    "SyncApprovalRequest": "fronts.executor.sync",
    "SyncCodeExecutor": "fronts.executor.sync",
    "SyncFiles": "fronts.executor.sync",
    "ExecutionResult": "model",
    "KernelRecord": "model.sessions",
    "SessionRecord": "model.sessions",
    "ExecutionRecord": "model.sessions",
    "ExecutionEvent": "model.sessions",
    "PendingApproval": "model.sessions",
    "NotFoundError": "errors",
    "ConflictError": "errors",
    "AccessError": "errors",
    "AsyncClient": "fronts.client.async_client",
    "Client": "fronts.client.client",
    "BusyError": "errors",
    "MovingError": "errors",
    "NotPlacedError": "errors",
    "NotRunError": "errors",
    "Permission": "model.sessions",
    "DaemonError": "errors",
    "OutcomeUnknownError": "errors",
    "Variable": "model.variables",
    "ChangedVariable": "model.variables",
    "VariableChanges": "model.variables",
    "SaveReport": "model.saving",
    "LoadReport": "model.saving",
    "LeftOut": "model.saving",
    "checkpoint": "fronts.functions.session_functions",
    "checkpoints": "fronts.functions.session_functions",
    "restore": "fronts.functions.session_functions",
    "clone_apply": "fronts.functions.session_functions",
    "clone_diff": "fronts.functions.session_functions",
    "clone_fetch": "fronts.functions.session_functions",
    "diff": "fronts.functions.session_functions",
    "file_versions": "fronts.functions.session_functions",
    "drop_checkpoint": "fronts.functions.session_functions",
    "redo": "fronts.functions.session_functions",
    "restore_trash": "fronts.functions.session_functions",
    "trash": "fronts.functions.session_functions",
    "undo": "fronts.functions.session_functions",
    "adopt": "fronts.functions.session_functions",
    "fork": "fronts.functions.session_functions",
    "save": "fronts.functions.session_functions",
    "load": "fronts.functions.session_functions",
    "export": "fronts.functions.session_functions",
    "variables": "fronts.functions.session_functions",
    "Changes": "model.checkpoints",
    "StateChanges": "model.checkpoints",
    "FileVersions": "model.checkpoints",
}

__all__ = sorted(_HOME.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
