/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule of absence: which owner of a key a reader asks next, and when the key counts as absent.
 * Pure functions, which the client's look-up and the simulator (tests/sim) share.
 *
 * The caller considers the owners of the key's slot, and if owner_former_due() also its former
 * owners, each with a bit of its own; then owner_verdict() tells what to do.
 */
#ifndef ABI_OWNER_H
#define ABI_OWNER_H

#include <stdbool.h>

/*
 * Order in which a key's owners are asked: this host, peers that answer, peers that failed
 * recently or are suspect for this host's engine.
 */
enum owner_rank { RANK_HERE, RANK_ANSWERS, RANK_RESTS, RANKS };

struct owner_choice {
	enum owner_rank rank; /* RANKS: every owner considered so far was asked */
	unsigned bit;         /* the owner's bit in the set of owners asked */
};

enum owner_verdict {
	OWNER_ASK, /* ask the owner that was chosen */
	/* every owner answered that it does not have the key */
	OWNER_ABSENT,
	/* an owner could not be asked, and no other one has the key */
	OWNER_UNREACHABLE,
};

/*
 * The rank of an owner on another host. `failed`: a READ from it failed recently; `suspect`: it
 * does not serve this host's engine (control/members/suspect.h).
 */
static inline enum owner_rank owner_rank_remote(bool failed, bool suspect)
{
	return failed || suspect ? RANK_RESTS : RANK_ANSWERS;
}

/* Makes the owner the choice if it was not asked and is better; the first of equals stays. */
static inline bool owner_consider(
	struct owner_choice *best, unsigned asked, unsigned bit, enum owner_rank rank)
{
	if (asked & 1u << bit || rank >= best->rank)
		return false;
	*best = (struct owner_choice){rank, bit};
	return true;
}

/* True when no owner is left that answers. */
static inline bool owner_former_due(const struct owner_choice *best)
{
	return best->rank >= RANK_RESTS;
}

/*
 * An owner that failed recently or is suspect can cost its share of the deadline: once another
 * owner has `answered`, it is not asked, and the key is unreachable, not absent. `failed`: the READ
 * of an owner failed.
 */
static inline enum owner_verdict owner_verdict(
	const struct owner_choice *best, bool answered, bool failed)
{
	if (best->rank == RANK_RESTS && answered)
		return OWNER_UNREACHABLE;
	if (best->rank != RANKS)
		return OWNER_ASK;
	return failed ? OWNER_UNREACHABLE : OWNER_ABSENT;
}

#endif
