/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail.h. What a rail does is an event of its process: a stopped one takes no READ and no answer.
 * What the NIC does goes on. One thread.
 */
#include "tests/sim/rail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dv/layout.h"
#include "engine/control/conns/conns.h"
#include "engine/rail/rail.h"
#include "tests/sim/copier.h"
#include "tests/sim/nic.h"
#include "tests/sim/run.h"
#include "tests/sim/world.h"

#define TAKE_NS 1000u   /* from a client to its rail, and from control to rail */
#define COMMANDS_MAX 8u /* of the inbox */
#define PAGE_BYTES 512u /* that count as read by one READ */

enum conn_state { CONN_OPEN, CONN_PROBING, CONN_BROKEN, CONN_DROPPED };

struct read;
LIST_HEAD(read_list, read);

/* A connection that the rail has. */
struct conn {
	struct thing thing; /* first; of its watch */
	LIST_ENTRY(conn) next;
	struct rail *rail;
	struct rail_conn *handle;
	enum conn_state state;
	struct read_list reads; /* posted, and not completed */
	unsigned posted;
	uint32_t moved, moved_seen;
	uint64_t still_ns, ended_ns, posted_ns;
	bool watched, stalled, stuck;
};

struct event_sent {
	STAILQ_ENTRY(event_sent) next;
	struct rail_event event;
};

/* The request for a connection that was not answered. */
struct wanted {
	LIST_ENTRY(wanted) next;
	uint32_t ref;
	uint16_t peer;
};

struct rail {
	struct thing thing; /* first; of the event that takes commands */
	unsigned node, number;
	struct rail_command command[COMMANDS_MAX];
	unsigned commands;
	STAILQ_HEAD(, event_sent) events;
	LIST_HEAD(, conn) conns; /* the newest first */
	LIST_HEAD(, wanted) wanted;
	struct read_list parked;
	unsigned reads;
	uint32_t stalls;
	bool lost;
	uint64_t counter[COUNTER_COUNT];
};

struct read {
	struct thing thing; /* first */
	LIST_ENTRY(read) next;
	struct rail_read what;
	uint64_t incarnation; /* of the reader's engine */
	uint32_t attempt;     /* events of others are void */
	uint32_t tried;       /* a bit for each rail */
	unsigned number;      /* of the rail that it is given to */
	uint16_t peer;        /* if it is parked: number of the member */
	struct rail *rail;    /* that has it; NULL: none has */
	struct conn *conn;    /* that it is posted on; NULL: it is parked */
	struct dv_qp *qp;
	uint64_t posted_ns;
	bool probe, ended, right;
};

/* ---- ends of READs --------------------------------------------------------------------------- */

static void read_release(struct read *read)
{
	if (read->ended && !read->rail && !read->thing.closed)
		thing_close(&read->thing);
}

static void read_end(struct read *read, bool answered)
{
	if (!read->ended) {
		read->ended = true;
		if (!read->probe)
			read->what.done(read->what.context, answered);
	}
	read_release(read);
}

static void read_late(struct thing *thing, uint64_t word)
{
	(void)word;
	if (!thing->closed)
		read_end((struct read *)(void *)thing, false);
}

/* The event is of an attempt that goes on. */
static bool is_current(const struct read *read, uint64_t word)
{
	return !read->thing.closed && read->attempt == (uint32_t)word;
}

/* The rail has done with it. */
static void read_detach(struct read *read)
{
	if (!read->rail)
		return;
	LIST_REMOVE(read, next);
	read->rail->reads--;
	if (read->conn)
		read->conn->posted--;
	read->attempt++;
	read->rail = NULL;
	read->conn = NULL;
	read->qp = NULL;
}

/* ---- worlds without connections, and memory of this host ------------------------------------- */

static bool serves(unsigned reader, unsigned node)
{
	return wire_reaches(reader, node) && wire_reaches(node, reader) &&
	       world.node[node].running && !world.node[node].gray;
}

static void plain_ends(struct thing *thing, uint64_t answered)
{
	read_end((struct read *)(void *)thing, answered);
}

static void plain_arrives(struct thing *thing, uint64_t word)
{
	struct read *read = (struct read *)(void *)thing;
	unsigned reader = read->what.reader;
	int to = node_by_ref(read->what.ref);

	(void)word;
	if (to < 0 || !serves(reader, (unsigned)to) ||
		!read->what.sample(read->what.context, (unsigned)to))
		world_always(world.now_ns + RAIL_READ_NS, reader, thing, false, plain_ends);
	else
		world_always(world.now_ns + wire_latency(reader), reader, thing, true, plain_ends);
}

static void plain_begin(struct read *read)
{
	int to = node_by_ref(read->what.ref);
	unsigned reader = read->what.reader;

	world_always(world.now_ns + wire_latency(to < 0 ? reader : (unsigned)to), reader,
		&read->thing, 0, plain_arrives);
}

/* ---- the client chooses a rail --------------------------------------------------------------- */

static void attempt_taken(struct thing *thing, uint64_t word);

/* The rails that clients do not use towards this member. False: it is no member. */
static bool rails_out(const struct read *read, uint32_t *ret_out)
{
	const struct control *control = &world.node[read->what.reader].control;
	const struct member_record *to;

	if (!world.node[read->what.reader].running || control->incarnation != read->incarnation)
		return false;
	to = member_by_ref(control, read->what.ref);
	if (to)
		*ret_out = shm_load(&control->status->rails_out) |
			   shm_load(&control->status->peer_rails_out[to->peer]);
	return to != NULL;
}

static void attempt_begin(struct read *read, uint32_t rails)
{
	do
		read->number = (unsigned)(world_random() % SIM_RAILS);
	while (!(rails >> read->number & 1));
	read->tried |= 1u << read->number;
	world_at(world.now_ns + TAKE_NS, read->what.reader, &read->thing, ++read->attempt,
		attempt_taken);
}

/* As stripe_usable(): if all rails are out, the client tries one. */
static void read_begin(struct read *read)
{
	uint32_t all = (1u << world.node[read->what.reader].control.rails) - 1, out = 0;

	if (!rails_out(read, &out) || !all)
		return; /* it ends when its time is over */
	attempt_begin(read, all & ~out ? all & ~out : all);
}

/* As stripe_again(). */
static void attempt_failed(struct read *read)
{
	uint32_t all = (1u << SIM_RAILS) - 1, out = 0;

	read_detach(read);
	if (read->ended || read->probe || !rails_out(read, &out) || !(all & ~out & ~read->tried))
		read_end(read, false);
	else
		attempt_begin(read, all & ~out & ~read->tried);
}

void rail_read(const struct rail_read *what)
{
	const struct control *control = &world.node[what->reader].control;
	struct read *read = calloc(1, sizeof(*read));

	if (!read)
		abort();
	read->what = *what;
	read->incarnation = control->incarnation;
	if (!control->conns || what->ref == control->ref) {
		plain_begin(read);
		return;
	}
	world_always(world.now_ns + RAIL_READ_NS, what->reader, &read->thing, 0, read_late);
	read_begin(read);
}

/* ---- the rail posts READs -------------------------------------------------------------------- */

static void conn_break(struct conn *conn, uint32_t syndrome);
static void conn_watch(struct thing *thing, uint64_t word);
static void read_arrives(struct thing *thing, uint64_t word);
static void conn_return_if_drained(struct conn *conn);

static void event_send(struct rail *rail, const struct rail_event *event)
{
	struct event_sent *sent = malloc(sizeof(*sent));

	if (!sent)
		abort();
	sent->event = *event;
	STAILQ_INSERT_TAIL(&rail->events, sent, next);
}

static void conn_event(struct conn *conn, uint32_t kind, uint32_t detail, uint64_t ns)
{
	event_send(conn->rail, &(struct rail_event){.kind = kind,
				       .peer = conn->handle->peer,
				       .ref = conn->handle->ref,
				       .detail = detail,
				       .object = conn->handle,
				       .ns = ns});
}

static void watch_soon(struct conn *conn)
{
	if (conn->watched)
		return;
	conn->watched = true;
	world_at(world.now_ns + CONN_WATCH_NS, conn->rail->node, &conn->thing, 0, conn_watch);
}

static void read_post(struct read *read, struct conn *conn)
{
	const struct rail_conn *handle = conn->handle;
	struct rail *rail = conn->rail;

	read->conn = conn;
	read->rail = rail;
	read->qp = (struct dv_qp *)(void *)handle->sq[world_random() % handle->qps];
	read->posted_ns = conn->posted_ns = world.now_ns;
	LIST_INSERT_HEAD(&conn->reads, read, next);
	conn->posted++;
	rail->reads++;
	watch_soon(conn);
	world_always(world.now_ns + wire_latency(nic_qp_to(read->qp)), rail->node, &read->thing,
		read->attempt, read_arrives);
}

static struct conn *conn_newest(struct rail *rail, uint16_t peer)
{
	struct conn *conn;

	LIST_FOREACH (conn, &rail->conns, next)
		if (conn->handle->peer == peer)
			return conn;
	return NULL;
}

/* As peer_want(). */
static void peer_want(struct rail *rail, uint16_t peer, uint32_t ref)
{
	struct wanted *wanted;

	LIST_FOREACH (wanted, &rail->wanted, next)
		if (wanted->peer == peer)
			return;
	wanted = malloc(sizeof(*wanted));
	if (!wanted)
		abort();
	*wanted = (struct wanted){.ref = ref, .peer = peer};
	LIST_INSERT_HEAD(&rail->wanted, wanted, next);
	event_send(rail, &(struct rail_event){.kind = RAIL_CONN_WANTED, .peer = peer, .ref = ref});
}

/* As run_route(). */
static void attempt_taken(struct thing *thing, uint64_t word)
{
	struct read *read = (struct read *)(void *)thing;
	const struct control *control = &world.node[read->what.reader].control;
	const struct member_record *to;
	struct rail *rail;
	struct conn *conn;

	if (!is_current(read, word) || !world.node[read->what.reader].running ||
		control->incarnation != read->incarnation)
		return;
	to = member_by_ref(control, read->what.ref);
	rail = control->rail[read->number].rail;
	conn = to ? conn_newest(rail, to->peer) : NULL;
	if (!to || (conn && conn->handle->ref == to->ref && conn->state != CONN_OPEN)) {
		attempt_failed(read);
	} else if (conn && conn->handle->ref == to->ref) {
		read_post(read, conn);
	} else {
		read->rail = rail;
		read->peer = to->peer;
		rail->reads++;
		LIST_INSERT_HEAD(&rail->parked, read, next);
		peer_want(rail, to->peer, to->ref);
	}
}

/* ---- the NIC --------------------------------------------------------------------------------- */

static void read_completed(struct thing *thing, uint64_t word);

/* A completion: the poll core takes it when the process runs. */
static void complete(struct read *read, uint32_t syndrome)
{
	if (syndrome)
		nic_qp_error(read->qp);
	world_at(world.now_ns, read->rail->node, &read->thing,
		(uint64_t)syndrome << 32 | read->attempt, read_completed);
}

static void read_later(struct read *read)
{
	world_always(world.now_ns + NIC_ACK_NS, read->rail->node, &read->thing, read->attempt,
		read_arrives);
}

static void read_again(struct read *read)
{
	if (world.now_ns - read->posted_ns >= NIC_RETRY_NS && world.mutant != MUTANT_NO_STALL)
		complete(read, DV_SYNDROME_RETRY_EXCEEDED);
	else
		read_later(read);
}

/* The NIC does not go on with it; it may later. */
static bool read_hangs(struct read *read)
{
	if (!nic_hangs(read->qp))
		return false;
	read_later(read);
	return true;
}

static void read_returns(struct thing *thing, uint64_t word)
{
	struct read *read = (struct read *)(void *)thing;

	if (!is_current(read, word))
		return;
	if (read_hangs(read))
		return;
	if (nic_qp_failed(read->qp))
		complete(read, DV_SYNDROME_FLUSHED);
	else if (nic_answers(read->qp))
		complete(read, 0);
	else
		read_again(read);
}

static unsigned read_region(const struct read *read)
{
	unsigned region = REGION_HEADS_0;

	if (!read->probe)
		return read->what.region;
	while (region < REGION_SHARD && !read->conn->handle->region[region].length)
		region++;
	return region;
}

/* The request arrives, or does not. */
static void read_arrives(struct thing *thing, uint64_t word)
{
	struct read *read = (struct read *)(void *)thing;
	enum nic_answer answer;
	unsigned node;

	if (!is_current(read, word))
		return;
	if (read_hangs(read))
		return;
	if (nic_qp_failed(read->qp)) {
		complete(read, DV_SYNDROME_FLUSHED);
		return;
	}
	answer = nic_serve(read->qp, read->conn->handle->region[read_region(read)].rkey, &node);
	if (answer == NIC_REFUSED) {
		complete(read, DV_SYNDROME_REMOTE_ACCESS);
	} else if (answer == NIC_LOST) {
		read_again(read);
	} else {
		check(world.node[node].running &&
				world.node[node].control.ref == read->conn->handle->ref,
			"READ of another process");
		read->right =
			read->probe || read->ended || read->what.sample(read->what.context, node);
		world_always(world.now_ns + wire_latency(read->rail->node), read->rail->node, thing,
			read->attempt, read_returns);
	}
}

static void unstall(struct conn *conn, uint32_t syndrome)
{
	conn->stalled = false;
	if (!syndrome)
		shm_store(&conn->handle->stalled, 0);
}

static void read_completed(struct thing *thing, uint64_t word)
{
	struct read *read = (struct read *)(void *)thing;
	uint32_t syndrome = (uint32_t)(word >> 32);
	struct conn *conn = read->conn;

	if (!is_current(read, word))
		return;
	conn->moved++;
	if (conn->stalled)
		unstall(conn, syndrome);
	if (syndrome) {
		conn_break(conn, syndrome);
		attempt_failed(read);
	} else if (read->probe) {
		if (conn->state == CONN_PROBING) {
			conn->state = CONN_OPEN;
			conn_event(conn, RAIL_CONN_PROVEN, 0, 0);
		}
		read_detach(read);
		read_end(read, true);
	} else {
		conn->rail->counter[COUNTER_buckets_read]++;
		conn->rail->counter[COUNTER_bytes_read] += PAGE_BYTES;
		read_detach(read);
		read_end(read, read->right);
	}
	conn_return_if_drained(conn);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void conn_break(struct conn *conn, uint32_t syndrome)
{
	if ((conn->state != CONN_OPEN && conn->state != CONN_PROBING) ||
		world.mutant == MUTANT_NO_STALL)
		return;
	conn->state = CONN_BROKEN;
	conn->ended_ns = world.now_ns;
	conn_event(conn, RAIL_CONN_BROKEN, syndrome, 0);
}

static void conn_return_if_drained(struct conn *conn)
{
	if (conn->state != CONN_DROPPED || conn->posted || conn->thing.closed)
		return;
	LIST_REMOVE(conn, next);
	conn->handle->conn = NULL;
	conn_event(conn, RAIL_CONN_RETURNED, 0, 0);
	thing_close(&conn->thing);
}

static void conn_drop(struct conn *conn)
{
	if (!conn || conn->state == CONN_DROPPED)
		return;
	conn->state = CONN_DROPPED;
	if (!conn->ended_ns)
		conn->ended_ns = world.now_ns;
	conn_return_if_drained(conn);
}

static void conn_retire(struct conn *conn)
{
	struct read *read;

	if (!conn)
		return;
	conn->thing.events++;
	conn->state = CONN_DROPPED;
	while ((read = LIST_FIRST(&conn->reads)))
		attempt_failed(read);
	conn_return_if_drained(conn);
	conn->thing.events--;
	thing_release(&conn->thing);
}

/* One of its READs is past its deadline. */
static bool conn_expired(const struct conn *conn)
{
	const struct read *read;

	LIST_FOREACH (read, &conn->reads, next)
		if (read->ended || (read->probe && world.now_ns - read->posted_ns >= SIM_S))
			return true;
	return false;
}

static void conn_stall(struct conn *conn)
{
	if (conn->stalled)
		return;
	conn->stalled = true;
	if (!shm_load(&conn->handle->stalled))
		shm_store(&conn->handle->stalled, ++conn->rail->stalls);
}

/* As conn_watch() and conn_drain_watch(); only while READs are posted. */
static void conn_watch(struct thing *thing, uint64_t word)
{
	struct conn *conn = (struct conn *)(void *)thing;
	uint64_t stall_ns;

	(void)word;
	if (thing->closed || !conn->rail)
		return;
	conn->watched = false;
	if (!conn->posted) {
		conn->still_ns = 0;
		return;
	}
	stall_ns = conn->handle->stall_ns;
	conn->still_ns = conn->moved == conn->moved_seen ? conn->still_ns + CONN_WATCH_NS : 0;
	conn->moved_seen = conn->moved;
	if (conn->still_ns > CONN_STALL_NS)
		conn_stall(conn);
	if ((conn->stalled && conn_expired(conn)) || (stall_ns && conn->still_ns >= stall_ns))
		conn_break(conn, 0);
	if (conn->ended_ns && !conn->stuck && world.now_ns - conn->ended_ns >= CONN_DRAIN_NS) {
		conn->stuck = true;
		conn_event(conn, RAIL_CONN_STUCK, 0, net_now());
	}
	watch_soon(conn);
}

static void conn_probe(struct conn *conn)
{
	struct read *read = calloc(1, sizeof(*read));

	if (!read)
		abort();
	read->what.reader = conn->rail->node;
	read->what.ref = conn->handle->ref;
	read->incarnation = world.node[conn->rail->node].control.incarnation;
	read->probe = true;
	read_post(read, conn);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* The request was answered: the READs that wait for this process are posted, or fail. */
static void wanted_answered(struct rail *rail, uint16_t peer, uint32_t ref, struct conn *conn)
{
	struct wanted *wanted;
	struct read *read, *next;

	LIST_FOREACH (wanted, &rail->wanted, next)
		if (wanted->peer == peer && wanted->ref == ref)
			break;
	if (wanted) {
		LIST_REMOVE(wanted, next);
		free(wanted);
	}
	for (read = LIST_FIRST(&rail->parked); read; read = next) {
		next = LIST_NEXT(read, next);
		if (read->what.ref != ref)
			continue;
		if (!conn || conn->state != CONN_OPEN || read->ended) {
			attempt_failed(read);
			continue;
		}
		read_detach(read);
		read_post(read, conn);
	}
	/* as peer_want_next(): for another process of the member */
	LIST_FOREACH (read, &rail->parked, next)
		if (read->peer == peer)
			peer_want(rail, peer, read->what.ref);
}

static void conn_add(struct rail *rail, struct rail_conn *handle)
{
	struct conn *conn;

	if (rail->lost) {
		event_send(rail, &(struct rail_event){.kind = RAIL_CONN_RETURNED,
					 .peer = handle->peer,
					 .ref = handle->ref,
					 .object = handle});
		wanted_answered(rail, handle->peer, handle->ref, NULL);
		return;
	}
	conn = calloc(1, sizeof(*conn));
	if (!conn)
		abort();
	conn->rail = rail;
	conn->handle = handle;
	conn->state = handle->probe ? CONN_PROBING : CONN_OPEN;
	shm_store(&handle->stalled, 0);
	handle->conn = conn;
	LIST_INIT(&conn->reads);
	LIST_INSERT_HEAD(&rail->conns, conn, next);
	if (conn->state == CONN_PROBING)
		conn_probe(conn);
	wanted_answered(rail, handle->peer, handle->ref, conn);
}

static struct conn *conn_of(struct rail *rail, const struct rail_conn *handle)
{
	struct conn *conn;

	LIST_FOREACH (conn, &rail->conns, next)
		if (conn->handle == handle)
			return conn;
	return NULL;
}

static void rail_lose(struct rail *rail)
{
	struct conn *conn;

	rail->lost = true;
	LIST_FOREACH (conn, &rail->conns, next)
		conn_break(conn, 0);
	event_send(rail, &(struct rail_event){.kind = RAIL_QUIET});
}

static void command_obey(struct rail *rail, const struct rail_command *command)
{
	switch (command->kind) {
	case RAIL_CONN_ADD: conn_add(rail, command->object); break;
	case RAIL_CONN_REFUSE: wanted_answered(rail, command->peer, command->ref, NULL); break;
	case RAIL_CONN_DROP: conn_drop(conn_of(rail, command->object)); break;
	case RAIL_CONN_RETIRE: conn_retire(conn_of(rail, command->object)); break;
	case RAIL_LOST: rail_lose(rail); break;
	case RAIL_CHANNEL_ADD: copier_channel(rail->node, rail->number, command->object); break;
	case RAIL_REGION_ADD: break; /* the copier's: it knows the pools */
	default: abort();            /* sessions are not simulated */
	}
}

static void commands_obey(struct thing *thing, uint64_t word)
{
	struct rail *rail = (struct rail *)(void *)thing;

	(void)word;
	if (thing->closed)
		return;
	for (unsigned i = 0; i < rail->commands; i++)
		command_obey(rail, &rail->command[i]);
	rail->commands = 0;
}

bool rail_command_send(struct rail *rail, const struct rail_command *command)
{
	if (rail->commands == COMMANDS_MAX)
		return false;
	if (!rail->commands)
		world_at(world.now_ns + TAKE_NS, rail->node, &rail->thing, 0, commands_obey);
	rail->command[rail->commands++] = *command;
	return true;
}

/* ---- events, as loop_event_serve() ----------------------------------------------------------- */

static void event_serve(struct control *control, unsigned rail, const struct rail_event *event)
{
	switch (event->kind) {
	case RAIL_CONN_WANTED: conns_wanted(control, rail, event->peer, event->ref); break;
	case RAIL_CONN_BROKEN: conns_broken(control, rail, event->object, event->detail); break;
	case RAIL_CONN_RETURNED:
		if (world.mutant != MUTANT_KEPT_CONN)
			conns_returned(control, rail, event->object);
		break;
	case RAIL_CONN_STUCK:
		if (world.mutant != MUTANT_KEPT_STUCK)
			conns_stuck(control, rail, event->object, event->ns);
		break;
	case RAIL_QUIET: conns_quiet(control, rail); break;
	case RAIL_CONN_PROVEN:
		if (world.mutant != MUTANT_UNPROVEN)
			conns_proven(control, rail, event->object);
		break;
	default: abort();
	}
}

unsigned rails_turn(unsigned node)
{
	struct control *control = &world.node[node].control;
	unsigned taken = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		struct rail *rail = control->rail[i].rail;
		struct event_sent *sent;

		while ((sent = STAILQ_FIRST(&rail->events))) {
			STAILQ_REMOVE_HEAD(&rail->events, next);
			event_serve(control, i, &sent->event);
			free(sent);
			taken++;
		}
	}
	return taken + outbox_flush(control);
}

/* ---- rails ----------------------------------------------------------------------------------- */

void rails_open(unsigned node)
{
	struct control *control = &world.node[node].control;

	for (unsigned i = 0; i < control->rails; i++) {
		struct rail *rail = calloc(1, sizeof(*rail));

		if (!rail)
			abort();
		rail->node = node;
		rail->number = i;
		STAILQ_INIT(&rail->events);
		LIST_INIT(&rail->conns);
		LIST_INIT(&rail->wanted);
		LIST_INIT(&rail->parked);
		control->rail[i].rail = rail;
		control->rail[i].device = nic_of(node, i);
		snprintf(control->plan.rail[i].device, sizeof(control->plan.rail[i].device),
			"sim_%u", i);
	}
	nic_export(node);
}

/* The process has ended. A client waits for the rest of its time. */
static void read_forget(struct read *read)
{
	read_detach(read);
	read->ended |= read->probe;
	read_release(read);
}

static void rail_free(struct rail *rail)
{
	struct event_sent *sent;
	struct wanted *wanted;
	struct conn *conn;
	struct read *read;

	while ((conn = LIST_FIRST(&rail->conns))) {
		while ((read = LIST_FIRST(&conn->reads)))
			read_forget(read);
		LIST_REMOVE(conn, next);
		thing_close(&conn->thing);
	}
	while ((read = LIST_FIRST(&rail->parked)))
		read_forget(read);
	while ((wanted = LIST_FIRST(&rail->wanted))) {
		LIST_REMOVE(wanted, next);
		free(wanted);
	}
	while ((sent = STAILQ_FIRST(&rail->events))) {
		STAILQ_REMOVE_HEAD(&rail->events, next);
		free(sent);
	}
	thing_close(&rail->thing);
}

void rails_close(unsigned node)
{
	struct control *control = &world.node[node].control;

	for (unsigned i = 0; i < control->rails; i++)
		rail_free(control->rail[i].rail);
}

struct dv_cq *rail_cq(struct rail *rail)
{
	return (struct dv_cq *)(void *)rail;
}

void rail_counters(const struct rail *rail, uint64_t ret_counters[COUNTER_COUNT])
{
	memcpy(ret_counters, rail->counter, sizeof(rail->counter));
}

uint32_t rail_in_flight(const struct rail *rail)
{
	return rail->reads;
}

uint32_t rail_stalls(const struct rail *rail)
{
	return rail->stalls;
}

/* ---- what the checkers see ------------------------------------------------------------------- */

void rail_look(unsigned node, unsigned number, uint32_t ref, struct rail_seen *ret)
{
	const struct rail *rail = world.node[node].control.rail[number].rail;
	const struct wanted *wanted;
	const struct conn *conn;

	*ret = (struct rail_seen){.wants = false};
	LIST_FOREACH (wanted, &rail->wanted, next)
		ret->wants |= wanted->ref == ref;
	LIST_FOREACH (conn, &rail->conns, next)
		if (conn->handle->ref == ref)
			break;
	if (!conn)
		return;
	*ret = (struct rail_seen){.wants = ret->wants,
		.connected = true,
		.open = conn->state == CONN_OPEN,
		.paired = true,
		.posted_ns = conn->posted_ns};
	for (unsigned i = 0; i < conn->handle->qps; i++)
		ret->paired &= nic_qp_paired((struct dv_qp *)(void *)conn->handle->sq[i]);
}

unsigned rail_connections(unsigned node, unsigned number)
{
	const struct conn *conn;
	unsigned count = 0;

	LIST_FOREACH (conn, &world.node[node].control.rail[number].rail->conns, next)
		count++;
	return count;
}

uint64_t rail_ended_ns(unsigned node, unsigned number)
{
	const struct conn *conn;
	uint64_t ns = 0;

	LIST_FOREACH (conn, &world.node[node].control.rail[number].rail->conns, next)
		if (conn->ended_ns && (!ns || conn->ended_ns < ns))
			ns = conn->ended_ns;
	return ns;
}

unsigned rail_reads(unsigned node, unsigned number)
{
	return world.node[node].control.rail[number].rail->reads;
}
