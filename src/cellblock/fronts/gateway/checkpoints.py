"""Checkpoints of a session, and its branches."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cellblock.errors import AccessError
from cellblock.fronts.gateway.access import link_of
from cellblock.fronts.gateway.answers import json_response
from cellblock.fronts.gateway.models import Done, KernelModel, Strict
from cellblock.fronts.gateway.saving import VariableModel
from cellblock.fronts.gateway.sessions import Read, Run, with_age
from cellblock.operations.checkpoints import Adopt, Checkpoints, Diff, DropCheckpoint, Fork, MakeCheckpoint, Restore, Undo

router = APIRouter(prefix="/sessions/{session}", tags=["Checkpoints"])


class WantedCheckpoint(Strict):
    """A checkpoint to make."""

    name: Annotated[str, Field(max_length=200, description="What to call it.")] = ""
    files: Annotated[Literal["shared", "copy"], Field(description="copy: the state of the files belongs to it.")] = "shared"


class CheckpointModel(BaseModel):
    """A checkpoint."""

    id: str
    name: str
    made_at: str
    execution_count: int = Field(description="The number of the last cell before it.")
    automatic: bool
    files: str


class CheckpointList(BaseModel):
    """Checkpoints, oldest first."""

    checkpoints: list[CheckpointModel]


class ChangedVariableModel(BaseModel):
    """A variable that has another value than before."""

    before: VariableModel
    after: VariableModel


class VariableChangesModel(BaseModel):
    """How the variables differ."""

    new: list[VariableModel]
    changed: list[ChangedVariableModel]
    deleted: list[VariableModel]
    unknown: list[VariableModel] = Field(
        description="Variables that may have changed: they cannot be compared, or not in time."
    )


class FileChangeModel(BaseModel):
    """A file that differs."""

    path: str
    before: int | None = Field(description="Its size before; null if it was not there, or is not a file.")
    after: int | None


class FileChangesModel(BaseModel):
    """How the files differ."""

    new: list[FileChangeModel]
    changed: list[FileChangeModel]
    deleted: list[FileChangeModel]
    more: int = Field(description="How many further files differ: at most 1,000 of each kind are listed.")


class ChangesModel(BaseModel):
    """What has changed since a checkpoint."""

    variables: VariableChangesModel
    files: FileChangesModel | None = Field(description="Null if the checkpoint holds no files.")


class WantedUndo(Strict):
    """How much to undo."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    partial: Annotated[
        bool, Field(description="Whether to go back as far as is possible, if they cannot be undone exactly.")
    ] = False


class UndoneCell(BaseModel):
    """A cell that was undone."""

    code: str
    status: str
    execution_count: int | None
    abandoned: bool


class UndoneModel(BaseModel):
    """What was undone."""

    cells: list[UndoneCell]
    execution_count: int
    files: list[str]
    files_left: str = Field(description="Why not all files were brought back; empty if they were.")
    outside: list[str] = Field(description="Calls that were allowed meanwhile, and are not undone.")


class WantedBranches(Strict):
    """Sessions to make."""

    names: list[str] = Field(min_length=1, max_length=100)
    files: Annotated[
        Literal["shared", "copy"] | None,
        Field(description="copy: each branch gets the files in a directory of its own. By default as for `Session.fork`."),
    ] = None
    seeds: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(
        default_factory=list,
        max_length=100,
        description="What random numbers begin with in each branch; empty: something new.",
    )
    same_random_state: Annotated[bool, Field(description="Whether all branches draw the same random numbers.")] = False


class WantedAdoption(Strict):
    """A branch to go on with."""

    branch: Annotated[str, Field(max_length=200, description="The name or id of the other session.")]


class FilesChanged(BaseModel):
    """What was done with files. Paths are relative to the workspace."""

    written: list[str]
    removed: list[str]
    kept: list[str] = Field(description="What the branch does not have, and what stays.")
    more: int = Field(description="How many further paths there are: at most 1,000 of each kind are listed.")


class Branches(BaseModel):
    """Sessions that were made."""

    kernels: list[KernelModel]


class RestoredModel(CheckpointModel):
    """A checkpoint that a session has gone back to."""

    changes: FilesChanged = Field(description="What was done with files, if the checkpoint holds any.")


@router.post("/checkpoints", response_model=CheckpointModel, summary="Keep the state that a session has now")
async def make(request: Request, session: str, _: Run, wanted: WantedCheckpoint | None = None) -> Response:
    """Keep the state that a session has now, to go back to later."""
    wanted = wanted or WantedCheckpoint()
    return json_response(await link_of(request).call(MakeCheckpoint(session, wanted.name, wanted.files)))


@router.get("/checkpoints", response_model=CheckpointList, summary="List checkpoints")
async def list_checkpoints(request: Request, session: str, _: Read) -> Response:
    """List the checkpoints of a session, oldest first."""
    return json_response({"checkpoints": await link_of(request).call(Checkpoints(session))})


@router.post("/checkpoints/{checkpoint}/restore", response_model=RestoredModel, summary="Go back to a checkpoint")
async def restore(request: Request, session: str, checkpoint: str, _: Run) -> Response:
    """Go back to a checkpoint, by its id or its name. It stays."""
    return json_response(await link_of(request).call(Restore(session, checkpoint)))


@router.delete("/checkpoints/{checkpoint}", response_model=Done, summary="Drop a checkpoint")
async def drop(request: Request, session: str, checkpoint: str, _: Run) -> Response:
    """Drop a checkpoint, and free its memory."""
    return json_response({"done": await link_of(request).call(DropCheckpoint(session, checkpoint))})


@router.get("/checkpoints/{checkpoint}/diff", response_model=ChangesModel, summary="Compare with a checkpoint")
async def diff(request: Request, session: str, checkpoint: str, _: Run) -> Response:
    """Tell what has changed since a checkpoint: variables, and files if it holds them. It needs the kernel for a moment."""
    return json_response(await link_of(request).call(Diff(session, checkpoint)))


@router.post("/undo", response_model=UndoneModel, summary="Undo cells")
async def undo(request: Request, session: str, _: Run, wanted: WantedUndo | None = None) -> Response:
    """Go back over the last cells of a session."""
    wanted = wanted or WantedUndo()
    return json_response(await link_of(request).call(Undo(session, wanted.count, wanted.partial)))


@router.post("/fork", response_model=Branches, summary="Make branches")
async def fork(request: Request, session: str, caller: Run, wanted: WantedBranches) -> Response:
    """Make sessions that begin with the state that another one has now."""
    if caller.session:
        raise AccessError("this token is for one session, and cannot make others")
    fork = Fork(session, tuple(wanted.names), wanted.files or "", tuple(wanted.seeds), wanted.same_random_state)
    made = await link_of(request).call(fork)
    return json_response({"kernels": [with_age(record) for record in made]})


@router.post("/adopt", response_model=FilesChanged, summary="Go on with a branch")
async def adopt(request: Request, session: str, caller: Run, wanted: WantedAdoption) -> Response:
    """Go on with the state of another session, mostly a branch, which is ended by that."""
    if caller.session:
        raise AccessError("this token is for one session, and cannot use others")
    return json_response(await link_of(request).call(Adopt(session, wanted.branch)))
