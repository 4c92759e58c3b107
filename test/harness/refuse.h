/* refuse.h - makes system calls of this process fail, for example link(2) as on a file system without hard links. It cannot be
 * undone: call it in a child process (process_fork()). */
#ifndef TEST_HARNESS_REFUSE_H
#define TEST_HARNESS_REFUSE_H

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/check.h"

#ifdef SYS_link /* older architectures have calls without "at" too */
#define REFUSE_LINK SYS_link, SYS_linkat
#define REFUSE_MKDIR SYS_mkdir, SYS_mkdirat
#define REFUSE_RENAME SYS_rename, SYS_renameat
#else
#define REFUSE_LINK SYS_linkat, SYS_linkat
#define REFUSE_MKDIR SYS_mkdirat, SYS_mkdirat
#define REFUSE_RENAME SYS_renameat, SYS_renameat
#endif

/* Both calls fail with this errno from now on. */
static inline void refuse_calls(int call, int call_at, int errnum)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call_at, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = COUNT_OF(code), .filter = code };

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

#endif
