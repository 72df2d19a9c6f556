/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster view without a centre: while a page of this engine's dashboard is watched, the
 * control plane requests summaries of the other members and puts them into its snapshots. Nothing
 * is sent while no page is watched. Nothing waits: a request is one small message, its answer comes
 * as any other message, and one that does not come is missing in the view.
 *
 * All but view_json() run on the control plane's thread. A control plane without a view
 * (control->view is NULL, in tests) answers nothing and asks nothing.
 */
#ifndef CONTROL_VIEW_INNER_H
#define CONTROL_VIEW_INNER_H

#include "engine/control/members/members.h"
#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/summary_inner.h"

#define VIEW_WATCH_NS 5000000000ull /* a page is watched for so long after a request of it */
#define VIEW_APART_NS 1000000000ull /* between two requests to one member */
#define VIEW_AT_A_TIME 64u          /* members that are asked within VIEW_APART_NS */
#define VIEW_TICK_ASKS 4u           /* requests in one call of view_tick() */
/*
 * Of VIEW_ROUND requests one goes to the member that was asked the longest ago, whatever its state,
 * so that all members are seen while many are in a bad state; the others go to the worst ones.
 */
#define VIEW_ROUND 4u
#define VIEW_ANSWER_NS 500000000ull /* between two answers on one link; earlier requests get none */
#define VIEW_SILENT_NS 3000000000ull /* no answer for so long: the member is shown as silent */
#define VIEW_FRESH_NS 20000000000ull /* an older summary counts in no total */
#define VIEW_ROWS_MAX 64u            /* members that are shown */

/* What this engine knows of one member; the same index as in struct member. */
struct view_row {
	uint64_t incarnation; /* of the member; another one: the row is of a former member */
	bool can;             /* alive, and has a link */
	uint64_t asked_ns;    /* time of the last request; 0: none */
	uint64_t silent_ns;   /* time of the first request since the last answer; 0: none */
	uint64_t answered_ns; /* time at which `summary` came; 0: none came */
	struct summary summary;
};

struct view {
	struct view_row row[MEMBER_ENTRIES]; /* memory behind `rows` of them is not touched */
	unsigned rows;
	uint64_t asked_ns[VIEW_AT_A_TIME]; /* times of the last requests, a ring */
	unsigned asks;                     /* requests so far */
	uint64_t sent_ns;                  /* time of the last answer to any member; 0: none */
	uint16_t dashboard_port;           /* of this engine's summary */
	struct summary own;                /* `made` 0: none yet */
};

/* The index of the row that is asked next; -1: none may be asked now. Changes nothing. */
int view_next(const struct view *view, uint64_t now_ns);
/* Notes that the row was asked. */
void view_asked(struct view *view, unsigned row, uint64_t now_ns);

/* Fills the fields of a snapshot's member that are about its summary; those are zero before. */
void view_member_fill(const struct control *control, const struct member *entry, uint64_t now_ns,
	struct snapshot_member *ret);

/*
 * Notes that the HTTP server listens at `fd`. Other engines are told of its port only if it is
 * reached at the address that they have for this engine: they have no other.
 */
void view_dashboard(struct control *control, int fd);

/* From the recent figures of a snapshot. Any thread. */
void view_summary_make(const struct snapshot *s, struct summary *ret);

/* The text of /api/cluster. 0, and the caller frees *ret_text, or -ENOMEM. Any thread. */
int view_json(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes);

#endif
