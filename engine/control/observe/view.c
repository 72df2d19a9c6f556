/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests summaries from members and answers their requests. Owns struct view. Control plane's
 * thread only.
 */
#include "engine/control/observe/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "numa/clock.h"

/* ---- the order of requests ------------------------------------------------------------------- */

/* Severity of the member's last summary from SUMMARY_WARNING on; 0: milder, or no summary. */
static unsigned badness(const struct view_row *row)
{
	return row->answered_ns && row->summary.severity >= SUMMARY_WARNING ? row->summary.severity
									    : 0;
}

static bool due(const struct view_row *row, uint64_t now_ns)
{
	return row->can && (!row->asked_ns || now_ns - row->asked_ns >= VIEW_APART_NS);
}

int view_next(const struct view *view, uint64_t now_ns)
{
	uint64_t before_ns = view->asked_ns[view->asks % VIEW_AT_A_TIME];
	bool worst_first = view->asks % VIEW_ROUND != VIEW_ROUND - 1;
	int found = -1;
	unsigned bad = 0;

	/* before_ns is the time of the request that was sent VIEW_AT_A_TIME requests ago */
	if (before_ns && now_ns - before_ns < VIEW_APART_NS)
		return -1;
	for (unsigned i = 0; i < view->rows; i++) {
		const struct view_row *row = &view->row[i];
		unsigned worse = worst_first ? badness(row) : 0;

		if (!due(row, now_ns))
			continue;
		if (found < 0 || worse > bad ||
			(worse == bad && row->asked_ns < view->row[found].asked_ns)) {
			found = (int)i;
			bad = worse;
		}
	}
	return found;
}

void view_asked(struct view *view, unsigned row, uint64_t now_ns)
{
	view->asked_ns[view->asks++ % VIEW_AT_A_TIME] = now_ns;
	view->row[row].asked_ns = now_ns;
	if (!view->row[row].silent_ns)
		view->row[row].silent_ns = now_ns;
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct rpc_link *link_of(const struct member *entry)
{
	return member_link_of(entry);
}

/* Adapts the rows to members that have joined, died or been replaced since the last call. */
static void rows_update(struct control *control)
{
	struct view *view = control->view;

	view->rows = control->members->table.entries;
	for (unsigned i = 1; i < view->rows; i++) {
		const struct member *entry = member_at(&control->members->table, i);
		struct view_row *row = &view->row[i];

		if (row->incarnation != entry->record.incarnation)
			*row = (struct view_row){.incarnation = entry->record.incarnation};
		row->can = entry->state == MEMBER_ALIVE && entry->summaries &&
			   (link_of(entry) || !member_watched(control, entry));
	}
}

/*
 * Within VIEW_WATCH_NS; 0: never. The metrics thread may have read the clock later than the loop:
 * then_ns may be above now_ns.
 */
static bool recent(uint64_t then_ns, uint64_t now_ns)
{
	return then_ns && (now_ns < then_ns || now_ns - then_ns < VIEW_WATCH_NS);
}

bool view_active(const struct control *control, uint64_t watched_ns, uint64_t now_ns)
{
	return control->view &&
	       (recent(watched_ns, now_ns) || recent(control->view->sent_ns, now_ns));
}

void view_tick(struct control *control, uint64_t watched_ns, uint64_t now_ns)
{
	struct view *view = control->view;
	Pc__SummaryAsk ask = PC__SUMMARY_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!view || control->stopping || !recent(watched_ns, now_ns))
		return;
	rows_update(control);
	message.body_case = PC__MESSAGE__BODY_SUMMARY_ASK;
	message.summary_ask = &ask;
	for (unsigned n = 0; n < VIEW_TICK_ASKS; n++) {
		int row = view_next(view, now_ns);

		if (row < 0)
			return;
		view_asked(view, (unsigned)row, now_ns);
		/*
		 * If the link is full or is only dialled now, the member is asked again in a
		 * second.
		 */
		if (rpc_send(
			    member_link(control,
				    member_at(&control->members->table, (unsigned)row)->record.ref),
			    &message))
			control->counter[COUNTER_summaries_asked]++;
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

/*
 * A request that comes too early gets no answer, so a member cannot make this engine work. An
 * answer for which the link has no room is dropped: the view is no reason to close a link.
 */
bool view_serve_ask(struct control *control, struct rpc_link *link)
{
	uint64_t now_ns = clock_now_ns();
	struct view *view = control->view;
	Pc__Summary summary = PC__SUMMARY__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!view || !view->own.version ||
		(link->summary_ns && now_ns - link->summary_ns < VIEW_ANSWER_NS))
		return true;
	link->summary_ns = view->sent_ns = now_ns;
	summary.data.len = sizeof(view->own);
	summary.data.data = (uint8_t *)&view->own;
	message.body_case = PC__MESSAGE__BODY_SUMMARY;
	message.summary = &summary;
	if (rpc_send(link, &message))
		control->counter[COUNTER_summaries_sent]++;
	return true;
}

bool view_serve_summary(struct control *control, struct rpc_link *link, const Pc__Summary *summary)
{
	struct view *view = control->view;
	struct view_row *row;
	struct summary got;

	if (summary->data.len != SUMMARY_BYTES)
		return false;
	if (!view)
		return true;
	row = &view->row[link->member->index];
	/* Ignores a summary that was not requested, or was requested of a former incarnation */
	if (!row->silent_ns || row->incarnation != link->member->record.incarnation)
		return true;
	if (!summary_decode(summary->data.data, summary->data.len, &got))
		return true;
	row->summary = got;
	row->answered_ns = clock_now_ns();
	row->silent_ns = 0;
	return true;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

void view_fill(const struct control *control, const struct member *entry, uint64_t now_ns,
	struct snapshot_member *ret)
{
	const struct view *view = control->view;
	const struct view_row *row;

	ret->summaries = entry->summaries;
	if (!view)
		return;
	row = &view->row[entry->index];
	if (row->incarnation != entry->record.incarnation)
		return;
	ret->summary_silent =
		row->silent_ns && now_ns > row->silent_ns + VIEW_SILENT_NS && row->can;
	if (!row->answered_ns)
		return;
	ret->summary_ns = row->answered_ns;
	ret->summary = row->summary;
}

/* ---- open and close -------------------------------------------------------------------------- */

int view_open(struct control *control)
{
	control->view = calloc(1, sizeof(*control->view));
	return control->view ? 0 : -ENOMEM;
}

void view_close(struct control *control)
{
	free(control->view);
	control->view = NULL;
}
