"""roster.py - the numbers of the tasks of a run: the chief is 0, then the workers, then the ps tasks.
"""
import re

NAME = re.compile(r"\b(chief|worker|ps) (\d+)\b")
trainers = 4  # chief and workers; a task from this number on is a ps


def set_trainers(n):
    global trainers
    trainers = n


def kind_of(number):
    """Returns (type, index) of a task."""
    if number >= trainers:
        return "ps", number - trainers
    return ("chief", 0) if number == 0 else ("worker", number - 1)


def task_name(number):
    return "%s %d" % kind_of(number)


def number_of(name):
    """Returns the number of the first task in a text, as 2 for "worker 1"; None if it has no task."""
    found = NAME.search(name or "")
    if found is None:
        return None
    kind, index = found.group(1), int(found.group(2))
    return index + {"chief": 0, "worker": 1, "ps": trainers}[kind]
