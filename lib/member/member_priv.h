/* member_priv.h - what the files of member share. */
#ifndef MEMBER_MEMBER_PRIV_H
#define MEMBER_MEMBER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/member.h"

struct arena;

/* A copy with every string in `a`. */
struct member_ident member_ident_copy(const struct member_ident *i, struct arena *a);

/* true: they agree. Else writes the first thing that differs, both sides, and the remedy:
 * "the job differs: it has 'a', the coordinator has 'b'; ...". */
bool member_ident_agrees(const struct member_ident *theirs, uint32_t their_devices,
                         const struct member_ident *ours, uint32_t our_devices, char *out,
                         size_t n_out);

#endif
