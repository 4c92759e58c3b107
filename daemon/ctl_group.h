/* ctl_group.h - all tasks of a group, for the commands that ask each of them.
 *
 * Each task has its own connection. Threads: ctl_group_each() calls `run` on several threads, each
 * task by one of them; the rest runs on the thread of the command. */
#ifndef DAEMON_CTL_GROUP_H
#define DAEMON_CTL_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/security.h"

struct ProtobufCMessage;
struct ProtobufCMessageDescriptor;
struct buf;
struct err;
struct rdzv_caller;

struct ctl_task {
    char *name, *address;       /* owned: "worker 1", "10.0.0.2:2222" */
    struct rdzv_caller *caller; /* owned */
    void *arg;                  /* of the command */
};

struct ctl_group {
    struct ctl_task *tasks; /* [n] owned, as Status lists them */
    size_t n;
    struct security security; /* owned: the token and the certificates for all connections */
};

enum { CTL_CALL_MS = 5000 };

/* Opens the connection of one task. `security` is borrowed until ctl_task_close(). Errors: those of
 * rdzv_caller_open(). */
int ctl_task_open(struct ctl_task *t, const struct security *security, const char *name,
                  const char *address, struct err *err);
void ctl_task_close(struct ctl_task *t);
/* Calls a method of Control (rdzv.h). On success the caller frees *out with
 * protobuf_c_message_free_unpacked(). request NULL: it has no fields. Errors: those of
 * rdzv_caller_call(), ERR_IO (the reply is invalid). */
int ctl_task_call(struct ctl_task *t, const char *method, const struct ProtobufCMessage *request,
                  const struct ProtobufCMessageDescriptor *reply, uint64_t times_ns[2], void **out,
                  struct err *err);

/* Asks the task at `address` for the tasks of its group. On failure *g is empty. Errors: those of
 * security_open() and ctl_task_call(). */
int ctl_group_open(const char *address, struct ctl_group *g, struct err *err);
void ctl_group_close(struct ctl_group *g);
/* Calls run(task) for each task, several at a time, and waits for all. */
void ctl_group_each(struct ctl_group *g, void (*run)(struct ctl_task *t));

/* Appends text that came from a task; each control character becomes a blank, so that it cannot
 * steer the terminal. */
void ctl_add_text(struct buf *out, const char *text);

#endif
