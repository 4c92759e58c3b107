/* member.h - what tasks must have in common, and the words that membership uses everywhere. The
 * membership itself is node.h. */
#ifndef MEMBER_MEMBER_H
#define MEMBER_MEMBER_H

enum { MEMBER_TEXT_BYTES = 1024 }; /* of a sentence, with the NUL */

struct member_ident { /* what must agree; borrowed during the call, copied */
    const char *version, *job_digest, *cluster_hash, *cluster, *devices, *kernels, *nccl;
};

#endif
