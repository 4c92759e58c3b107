/* member.h - the identity that tasks must have in common. The membership protocol is in node.h. */
#ifndef MEMBER_MEMBER_H
#define MEMBER_MEMBER_H

enum { MEMBER_TEXT_BYTES = 1024 }; /* size of a text, with the NUL */

struct member_ident { /* must be equal on all tasks, the version up to the patch number; borrowed
                         during the call, copied */
    const char *version, *job_digest, *cluster_hash, *cluster, *devices, *kernels, *nccl;
    const char *job; /* the job as JSON, for the message when the digests differ; NULL or "": unknown */
    const char *protocol; /* versions of the messages between tasks; NULL: "" */
    const char *code;     /* digest of the code that decides the bits; NULL: "" */
};

#endif
