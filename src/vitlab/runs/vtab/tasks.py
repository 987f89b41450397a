"""Which tasks of VTAB-1k are meant: all, some by name, or groups."""

from collections.abc import Sequence

from vitlab.data.vtab.image_sets import vtab_task
from vitlab.paper.vtab import TASKS, VtabTask
from vitlab.require import require

TaskLike = str | VtabTask  # a key or a name of table 9, a group such as `natural`, or a task


def chosen_tasks(given: Sequence[TaskLike]) -> tuple[VtabTask, ...]:
    """Return the tasks in the order of table 9; all without names. Raises ValueError for an unknown name."""
    found: dict[str, VtabTask] = {}
    groups = {task.group for task in TASKS}
    for one in given or TASKS:
        if isinstance(one, VtabTask):
            own = (one,)
        else:
            own = (
                tuple(task for task in TASKS if task.group == one.lower())
                if one.lower() in groups
                else (vtab_task(one),)
            )
        for task in own:
            require(found.setdefault(task.key, task) == task, f"task {task.key} is given twice, with other slices")
    order = [task.key for task in TASKS]
    return tuple(sorted(found.values(), key=lambda task: order.index(task.key)))
