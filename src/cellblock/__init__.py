"""cellblock: sandboxed, stateful IPython sessions for AI agents.

The names below are loaded when they are first used, so that ``import cellblock`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellblock.approvals.elicitation import Elicitation
    from cellblock.approvals.request import ApprovalRequest
    from cellblock.approvals.rules import Rule, Rules
    from cellblock.client.async_client import AsyncClient
    from cellblock.client.client import Client
    from cellblock.errors import (
        AccessError,
        BusyError,
        CellblockError,
        CheckpointError,
        CodeExecutionError,
        ConflictError,
        CustodianError,
        DaemonError,
        ExecutionTimeoutError,
        FilesError,
        InterpreterError,
        InvalidInputError,
        KernelDiedError,
        LaunchError,
        McpServerError,
        NotFoundError,
        NotRunError,
        OutcomeUnknownError,
        PreloadError,
        ProtocolError,
        SandboxError,
        SnapshotError,
        StateError,
        StoreError,
        ToolRunnerError,
        UnsupportedError,
    )
    from cellblock.executor import CodeExecutor
    from cellblock.host import Filesystem, Host, Limits, Network, Policy, Resources, Session, SessionOptions
    from cellblock.host.checkpoints.checkpoint import Checkpoint
    from cellblock.host.checkpoints.rolling import Rolling
    from cellblock.host.files import FileInfo
    from cellblock.kernel_mgr.client import ExecutionError, KernelClient
    from cellblock.kernel_mgr.server import KernelGateway
    from cellblock.model import (
        AttemptSnapshot,
        CodeExecutionChunk,
        CodeExecutionResult,
        Completions,
        ErrorInfo,
        ExecutionResult,
        HistoryEntry,
        OutputItem,
    )
    from cellblock.model.checkpoints import CheckpointRecord, StateChanges, Undone
    from cellblock.model.decisions import CommandRequest, Decision
    from cellblock.model.saving import LeftOut, LoadReport, SaveReport
    from cellblock.model.sessions import (
        ExecutionEvent,
        ExecutionRecord,
        KernelRecord,
        PendingApproval,
        Permission,
        SessionRecord,
    )
    from cellblock.model.variables import ChangedVariable, Variable, VariableChanges
    from cellblock.store.approvals import Approvals
    from cellblock.sync.sessions import (
        destroy,
        execute,
        execute_with_retry,
        get_or_create,
        list_kernels,
        restart,
        status,
        variables,
        wipe,
    )
    from cellblock.sync.states import checkpoint, checkpoints, diff, drop_checkpoint, export, fork, load, restore, save, undo
    from cellblock.sync_executor import SyncApprovalRequest, SyncCodeExecutor, SyncFiles
    from cellblock.terminal import printable
    from cellblock.tools.apigen.generate import generate_mcp_sources
    from cellblock.tools.calling.runner import ToolRunner
    from cellblock.tools.serving.approval_channel import ApprovalChannel, ApprovalClient
    from cellblock.tools.serving.server import ToolServer

__version__ = "0.1.0"

_HOME = {
    "generate_mcp_sources": "tools.apigen.generate",
    "CellblockError": "errors",
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
    "ProtocolError": "errors",
    "SandboxError": "errors",
    "SnapshotError": "errors",
    "StateError": "errors",
    "StoreError": "errors",
    "ToolRunnerError": "errors",
    "UnsupportedError": "errors",
    "CodeExecutor": "executor",
    "ExecutionError": "kernel_mgr.client",
    "KernelClient": "kernel_mgr.client",
    "KernelGateway": "kernel_mgr.server",
    "Host": "host",
    "Filesystem": "host",
    "Limits": "host",
    "Network": "host",
    "Policy": "host",
    "Resources": "host",
    "Session": "host",
    "SessionOptions": "host",
    "Checkpoint": "host.checkpoints.checkpoint",
    "Rolling": "host.checkpoints.rolling",
    "Undone": "model.checkpoints",
    "CheckpointRecord": "model.checkpoints",
    "FileInfo": "host.files",
    "AttemptSnapshot": "model",
    "CodeExecutionChunk": "model",
    "CodeExecutionResult": "model",
    "CommandRequest": "model.decisions",
    "Completions": "model",
    "Decision": "model.decisions",
    "ErrorInfo": "model",
    "HistoryEntry": "model",
    "OutputItem": "model",
    "Approvals": "store.approvals",
    "printable": "terminal",
    "ApprovalRequest": "approvals.request",
    "Elicitation": "approvals.elicitation",
    "ApprovalChannel": "tools.serving.approval_channel",
    "ApprovalClient": "tools.serving.approval_channel",
    "Rule": "approvals.rules",
    "Rules": "approvals.rules",
    "ToolRunner": "tools.calling.runner",
    "ToolServer": "tools.serving.server",
    "get_or_create": "sync.sessions",
    "execute": "sync.sessions",
    "execute_with_retry": "sync.sessions",
    "destroy": "sync.sessions",
    "list_kernels": "sync.sessions",
    "status": "sync.sessions",
    "restart": "sync.sessions",
    "wipe": "sync.sessions",
    "SyncApprovalRequest": "sync_executor",
    "SyncCodeExecutor": "sync_executor",
    "SyncFiles": "sync_executor",
    "ExecutionResult": "model",
    "KernelRecord": "model.sessions",
    "SessionRecord": "model.sessions",
    "ExecutionRecord": "model.sessions",
    "ExecutionEvent": "model.sessions",
    "PendingApproval": "model.sessions",
    "NotFoundError": "errors",
    "ConflictError": "errors",
    "AccessError": "errors",
    "AsyncClient": "client.async_client",
    "Client": "client.client",
    "BusyError": "errors",
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
    "checkpoint": "sync.states",
    "checkpoints": "sync.states",
    "restore": "sync.states",
    "diff": "sync.states",
    "drop_checkpoint": "sync.states",
    "undo": "sync.states",
    "fork": "sync.states",
    "save": "sync.states",
    "load": "sync.states",
    "export": "sync.states",
    "variables": "sync.sessions",
    "StateChanges": "model.checkpoints",
}

__all__ = [
    "AccessError",
    "ApprovalChannel",
    "ApprovalClient",
    "ApprovalRequest",
    "Approvals",
    "AsyncClient",
    "AttemptSnapshot",
    "BusyError",
    "CellblockError",
    "ChangedVariable",
    "Checkpoint",
    "CheckpointError",
    "CheckpointRecord",
    "Client",
    "CodeExecutionChunk",
    "CodeExecutionError",
    "CodeExecutionResult",
    "CodeExecutor",
    "CommandRequest",
    "Completions",
    "ConflictError",
    "CustodianError",
    "DaemonError",
    "Decision",
    "Elicitation",
    "ErrorInfo",
    "ExecutionError",
    "ExecutionEvent",
    "ExecutionRecord",
    "ExecutionResult",
    "ExecutionTimeoutError",
    "FileInfo",
    "FilesError",
    "Filesystem",
    "HistoryEntry",
    "Host",
    "InterpreterError",
    "InvalidInputError",
    "KernelClient",
    "KernelDiedError",
    "KernelGateway",
    "KernelRecord",
    "LaunchError",
    "LeftOut",
    "Limits",
    "LoadReport",
    "McpServerError",
    "Network",
    "NotFoundError",
    "NotRunError",
    "OutcomeUnknownError",
    "OutputItem",
    "PendingApproval",
    "Permission",
    "Policy",
    "PreloadError",
    "ProtocolError",
    "Resources",
    "Rolling",
    "Rule",
    "Rules",
    "SandboxError",
    "SaveReport",
    "Session",
    "SessionOptions",
    "SessionRecord",
    "SnapshotError",
    "StateChanges",
    "StateError",
    "StoreError",
    "SyncApprovalRequest",
    "SyncCodeExecutor",
    "SyncFiles",
    "ToolRunner",
    "ToolRunnerError",
    "ToolServer",
    "Undone",
    "UnsupportedError",
    "Variable",
    "VariableChanges",
    "checkpoint",
    "checkpoints",
    "destroy",
    "diff",
    "drop_checkpoint",
    "execute",
    "execute_with_retry",
    "export",
    "fork",
    "generate_mcp_sources",
    "get_or_create",
    "list_kernels",
    "load",
    "printable",
    "restart",
    "restore",
    "save",
    "status",
    "undo",
    "variables",
    "wipe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
