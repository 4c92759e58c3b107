/* member_priv.h - declarations that the files of the folder share. */
#ifndef MEMBER_MEMBER_PRIV_H
#define MEMBER_MEMBER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "member/member.h"

struct arena;

/* Returns a copy; the strings are in `a`. */
struct member_ident member_ident_copy(const struct member_ident *i, struct arena *a);

/* Returns true if the identities agree. Else writes the first difference, both values and the
 * remedy: "the job differs: it has 'a', the coordinator has 'b'; ...". */
bool member_ident_agrees(const struct member_ident *theirs, uint32_t their_devices,
                         const struct member_ident *ours, uint32_t our_devices, char *out,
                         size_t n_out);

#endif
