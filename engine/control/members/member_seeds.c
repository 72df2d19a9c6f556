/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeds: addresses of engines to join, from cluster.seeds, the file (seeds_file.c) and etcd
 * (etcd.c). A seed is dialled until it leads to a member or candidate, which is then dialled
 * itself. Of a list that is longer than SEEDS_MAX, those that do not answer make room for others.
 *
 * A seed that leads to no member is logged, since when and why; health, the metrics and /readyz
 * show the same through seeds_report(). An address that cannot be parsed is refused at start-up.
 * Control plane's thread only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

/*
 * time between two exchanges of seeds that do not answer, once this engine has found another one;
 * until then it is a heartbeat
 */
#define MEMBER_ROTATE_NS (10ull * 1000000000)
#define SEED_LINE_NS (3600ull * 1000000000) /* the longest time between two lines about one */

static const char *const source_names[SEED_SOURCES] = {
	[SEED_LIST] = "cluster.seeds",
	[SEED_FILE] = "cluster.seeds_file",
	[SEED_ETCD] = "cluster.etcd",
};

/* ---- addresses ------------------------------------------------------------------------------- */

static bool seed_same_address(const struct seed_address *a, const struct seed_address *b)
{
	return a->port == b->port && strcmp(a->host, b->host) == 0;
}

void seed_set(struct member_seed *seed, const struct seed_address *address,
	const struct settings *settings)
{
	memset(seed, 0, sizeof(*seed));
	seed->address = *address;
	seed->self = address->port == (uint16_t)settings->cluster_port &&
		     strcmp(address->host, settings->cluster_address) == 0;
}

int member_seeds_parse(const struct settings *settings, struct members *members)
{
	char text[sizeof(settings->cluster_seeds)], *rest = NULL;
	uint16_t port = (uint16_t)settings->cluster_port;
	int count = 0;

	snprintf(text, sizeof(text), "%s", settings->cluster_seeds);
	for (char *each = strtok_r(text, ", \t", &rest); each;
		each = strtok_r(NULL, ", \t", &rest)) {
		struct seed_address address;
		char given[NAME_BYTES_MAX * 2];

		if (count == SEEDS_MAX) {
			log_error(
				"cluster.seeds names more than %d engines; give fewer: one live member is enough to learn of all others",
				SEEDS_MAX);
			return -EINVAL;
		}
		snprintf(given, sizeof(given), "%s", each);
		if (seed_parse(each, port, &address) < 0) {
			log_error(
				"cluster.seeds: \"%s\" is not address:port; write 10.0.0.1:%u, [fd00::1]:%u or name:%u",
				given, port, port, port);
			return -EINVAL;
		}
		seed_set(&members->seed[SEED_LIST * SEEDS_MAX + count++], &address, settings);
	}
	return count;
}

int member_seeds_check(struct control *control)
{
	struct members *scratch = calloc(1, sizeof(*scratch));
	int rc = scratch ? member_seeds_parse(control->settings, scratch) : -ENOMEM;

	free(scratch);
	return rc < 0 ? rc : 0;
}

/* ---- silent seeds ---------------------------------------------------------------------------- */

static bool source_configured(const struct control *control, enum seed_source source)
{
	return (source == SEED_FILE && control->settings->cluster_seeds_file[0]) ||
	       (source == SEED_ETCD && control->settings->cluster_etcd[0]);
}

static bool source_silent(const struct control *control, enum seed_source source)
{
	const struct seed_list *list = &control->members->list[source];

	return source_configured(control, source) && (!list->address || list->why[0]);
}

/* The list has more addresses than are dialled at a time: its elements come and go. */
static bool list_rotates(const struct members *members, enum seed_source source)
{
	return members->list[source].count > SEEDS_MAX;
}

static bool seed_used(const struct member_seed *seed)
{
	return seed->address.host[0] != '\0';
}

static bool seed_is_self(const struct member_seed *seed)
{
	return seed->self || seed->retry_ns;
}

/* The seed leads to a member, or to one that is known to have ended: health names it as down. */
static bool seed_met(const struct members *members, const struct member_seed *seed)
{
	const struct member *member = seed->name[0] ? member_find(members, seed->name) : NULL;

	return seed_is_self(seed) ||
	       (member && (member->state == MEMBER_ALIVE || member->state == MEMBER_DEAD));
}

static void silence_set(struct silence *silence, bool silent, uint64_t now_ns)
{
	if (!silent)
		*silence = (struct silence){0};
	else if (!silence->since_ns)
		silence->since_ns = now_ns;
}

static uint64_t silence_ms(const struct silence *silence, uint64_t now_ns)
{
	if (!silence->since_ns || now_ns < silence->since_ns)
		return 0;
	return (now_ns - silence->since_ns) / 1000000;
}

static bool silence_long(const struct silence *silence, uint64_t now_ns)
{
	return silence->sure || silence_ms(silence, now_ns) >= SEED_SILENT_MS;
}

/* True if a line is due; the next one is due when the silence is twice as long. */
static bool silence_line(struct silence *silence, uint64_t now_ns)
{
	uint64_t long_ns;

	if (!silence->since_ns || !silence_long(silence, now_ns) || now_ns < silence->line_ns)
		return false;
	long_ns = now_ns - silence->since_ns;
	if (long_ns < SEED_SILENT_MS * NS_PER_MS)
		long_ns = SEED_SILENT_MS * NS_PER_MS;
	silence->line_ns = now_ns + (long_ns < SEED_LINE_NS ? long_ns : SEED_LINE_NS);
	return true;
}

/* ---- why a seed is silent -------------------------------------------------------------------- */

/* What an attempt to reach an engine came to, in words. */
static void dial_why(const struct rpc_dial *dial, int error, char ret[SEED_WHY_BYTES])
{
	const char *text = strerror(error);
	bool far = dial->at[0] && strcmp(dial->at, dial->host) != 0;

	if (dial->unresolved[0]) {
		snprintf(ret, SEED_WHY_BYTES, "the name cannot be resolved: %s", dial->unresolved);
		return;
	}
	if (error == EACCES && dial->insecure[0])
		text = dial->insecure;
	else if (error == EPROTO)
		text = "what answers there is no PeerCache engine";
	else if (dial->reached && error == ETIMEDOUT)
		text = "it accepts the connection and does not answer";
	else if (dial->reached && error == ECONNRESET)
		text = "it closes the connection without an answer";
	text_fit(ret, SEED_WHY_BYTES, "%s%s%s", far ? dial->at : "", far ? ": " : "", text);
}

void seed_dial_failed(const struct rpc_dial *dial, int error)
{
	struct member_seed *seed = dial->owner;

	/* This engine closed the link, and has noted why, or tries the next address of a name. */
	if (error == ECONNABORTED)
		return;
	if (error == EPROTO)
		remembered_drop(dial);
	seed->refused = false;
	seed->retry_ns = 0; /* it leads to this engine no longer */
	seed->silence.sure = dial->unresolved[0] != '\0';
	dial_why(dial, error, seed->why);
}

void seed_source_read(struct control *control, enum seed_source source, const char *why)
{
	struct seed_list *list = &control->members->list[source];

	text_fit(list->why, sizeof(list->why), "%s", why ? why : "");
}

/* Writes why the seed leads to no member. */
static void seed_why(
	const struct members *members, const struct member_seed *seed, char ret[SEED_WHY_BYTES])
{
	const struct member *member = seed->name[0] ? member_find(members, seed->name) : NULL;
	const struct rpc_dial *dial = member ? member->contact->dial : NULL;
	struct member_texts texts;
	char address[ADDRESS_TEXT_BYTES];

	if (!member || member->state != MEMBER_CANDIDATE || !dial) {
		snprintf(ret, SEED_WHY_BYTES, "%s",
			seed->why[0]                      ? seed->why
			: seed->dial && seed->dial->query ? "its name is being looked up"
							  : "no answer yet");
		return;
	}
	member_texts(&member->record, &texts);
	address_text(texts.address, member->record.port, address);
	snprintf(ret, SEED_WHY_BYTES,
		"it answers, but its cluster.address, %s, cannot be reached: %s", address,
		!dial->fails                  ? "no answer yet"
		: dial->error == ECONNABORTED ? "the connection was closed, see the log"
					      : strerror(dial->error));
}

/* ---- the log --------------------------------------------------------------------------------- */

static const char *seeds_alone_text(const struct members *members)
{
	return members->unmet.since_ns ? "; until then this engine is alone" : "";
}

static void seed_watch(struct members *members, struct member_seed *seed, uint64_t now_ns)
{
	char address[ADDRESS_TEXT_BYTES], why[SEED_WHY_BYTES];

	address_text(seed->address.host, seed->address.port, address);
	if (seed_met(members, seed)) {
		if (seed->silence.line_ns)
			log_info("seed %s answers after %u s", address,
				(unsigned)(silence_ms(&seed->silence, now_ns) / 1000));
		silence_set(&seed->silence, false, now_ns);
		return;
	}
	silence_set(&seed->silence, true, now_ns);
	/* A refusal has a line of its own. */
	if (seed->refused || !silence_line(&seed->silence, now_ns))
		return;
	seed_why(members, seed, why);
	log_warn("seed %s has led to no member for %u s: %s. %s; it is tried again%s", address,
		(unsigned)(silence_ms(&seed->silence, now_ns) / 1000), why,
		seed->silence.sure
			? "Check the name, /etc/resolv.conf and /etc/hosts of this host"
			: "Check that an engine runs there and that no firewall is between",
		seeds_alone_text(members));
}

/* The elements of a long list come and go: while this engine is alone, one line speaks for all. */
static void list_watch(struct members *members, enum seed_source source, uint64_t now_ns)
{
	struct seed_list *list = &members->list[source];
	const struct member_seed *seed = &members->seed[source * SEEDS_MAX];
	char address[ADDRESS_TEXT_BYTES], why[SEED_WHY_BYTES];

	if (!members->unmet.since_ns || !silence_line(&list->silence, now_ns))
		return;
	seed_why(members, seed, why);
	address_text(seed->address.host, seed->address.port, address);
	log_warn(
		"none of the %u addresses of %s has led to a member for %u s, for example %s: %s. They are tried again; until then this engine is alone",
		list->count, source_names[source],
		(unsigned)(silence_ms(&list->silence, now_ns) / 1000), address, why);
}

/* Seeds that may lead to another engine, and sources that cannot be read. */
static unsigned seeds_others(const struct control *control)
{
	const struct members *members = control->members;
	unsigned others = 0;

	for (unsigned i = 0; i < SEEDS_GIVEN; i++)
		others += seed_used(&members->seed[i]) && !seed_is_self(&members->seed[i]);
	for (unsigned source = 0; source < SEED_SOURCES; source++)
		others += source_silent(control, source);
	return others;
}

/* Members that are down, as far as this engine remembers: they did not leave in order. */
static unsigned members_lost(const struct members *members)
{
	unsigned lost = 0;

	for (unsigned i = 0; i < members->table.contacts; i++) {
		const struct member *member = members->table.contact[i]->member;

		lost += member->state == MEMBER_DEAD && member->proven && !member->left;
	}
	return lost;
}

/* This engine is alone and should not be: it has met none yet, or has lost all others. */
static bool seeds_unmet(const struct control *control)
{
	return control->members->alive == 1 &&
	       (seeds_others(control) || members_lost(control->members));
}

void seeds_watch(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	/* While the memory is registered, no engine is dialled, and this one is not ready. */
	if (control->exporting)
		members->unmet.since_ns = 0;
	silence_set(&members->unmet, seeds_unmet(control), now_ns);
	if (control->exporting)
		return;
	for (unsigned source = 0; source < SEED_SOURCES; source++) {
		struct member_seed *seed = &members->seed[source * SEEDS_MAX];

		/* seeds_file.c and etcd.c have logged why they cannot be read */
		silence_set(&members->list[source].silence,
			source_silent(control, source) ||
				(list_rotates(members, source) && members->unmet.since_ns),
			now_ns);
		if (list_rotates(members, source)) {
			list_watch(members, source, now_ns);
			continue;
		}
		for (unsigned i = 0; i < SEEDS_MAX; i++)
			if (seed_used(&seed[i]))
				seed_watch(members, &seed[i], now_ns);
	}
}

/* ---- the report ------------------------------------------------------------------------------ */

static void seeds_report_add(
	struct seeds_report *ret, const char *address, const char *why, uint64_t ms)
{
	ret->silent++;
	if (ret->named == SEEDS_NAMED)
		return;
	snprintf(ret->seed[ret->named].address, sizeof(ret->seed[0].address), "%s", address);
	snprintf(ret->seed[ret->named].why, sizeof(ret->seed[0].why), "%s", why);
	ret->seed[ret->named++].ms = ms;
}

void seeds_report(const struct control *control, uint64_t now_ns, struct seeds_report *ret)
{
	const struct members *members = control->members;
	char address[ADDRESS_TEXT_BYTES], why[SEED_WHY_BYTES];

	*ret = (struct seeds_report){.others = seeds_others(control),
		.lost = members_lost(members),
		.unmet = seeds_unmet(control),
		.unmet_ms = silence_ms(&members->unmet, now_ns)};
	for (unsigned source = 0; source < SEED_SOURCES; source++) {
		const struct seed_list *list = &members->list[source];

		if (source_silent(control, source) && silence_long(&list->silence, now_ns))
			seeds_report_add(ret, source_names[source],
				list->why[0] ? list->why : "it has not answered yet",
				silence_ms(&list->silence, now_ns));
	}
	for (unsigned i = 0; i < SEEDS_GIVEN; i++) {
		const struct member_seed *seed = &members->seed[i];
		const struct seed_list *list = &members->list[i / SEEDS_MAX];
		bool rotates = list_rotates(members, i / SEEDS_MAX);
		const struct silence *silence = rotates ? &list->silence : &seed->silence;

		if (!seed_used(seed) || seed->refused || seed_met(members, seed) ||
			(rotates && !ret->unmet) || !silence_long(silence, now_ns))
			continue;
		seed_why(members, seed, why);
		address_text(seed->address.host, seed->address.port, address);
		seeds_report_add(ret, address, why, silence_ms(silence, now_ns));
	}
}

/* ---- members that this engine has had -------------------------------------------------------- */

/*
 * Addresses that a dial of this engine has reached, of members with which it keeps links. They are
 * dialled as seeds are while no member is there: two engines meet again whose seeds are all dead.
 * If a process keeps the memory of this engine (warm.c), the next engine has them, too.
 *
 * Not any more: one that left in order, that was away for REMEMBER_NS, at which this engine itself
 * answers, an engine of another cluster, or no engine. The next engine takes none if its
 * cluster.id or its sources of seeds are others: it belongs elsewhere then.
 */

static struct member_seed *remembered_seed(struct members *members, unsigned i)
{
	return &members->seed[SEEDS_GIVEN + i];
}

static uint64_t remembered_check(const struct settings *s, const struct seed_address *address)
{
	const char *const belongs[] = {s->cluster_id, s->cluster_seeds, s->cluster_seeds_file,
		s->cluster_etcd, s->cluster_etcd_prefix};
	uint64_t hash = map_mix(placement_hash(address->host) + address->port);

	for (unsigned i = 0; i < sizeof(belongs) / sizeof(belongs[0]); i++)
		hash = map_mix(hash + placement_hash(belongs[i]));
	return hash;
}

/* Writes the element to the memory that outlives this process. A kill may leave a half of it. */
static void remembered_store(struct control *control, unsigned i)
{
	const struct member_seed *seed = remembered_seed(control->members, i);

	if (control->remembered)
		control->remembered[i] = (struct remembered){
			.check = seed_used(seed)
					 ? remembered_check(control->settings, &seed->address)
					 : 0,
			.until_ns = control->members->remembered_until_ns[i],
			.address = seed->address};
}

static void remembered_forget(struct control *control, unsigned i)
{
	struct member_seed *seed = remembered_seed(control->members, i);

	rpc_dial_stop(seed->dial);
	memset(seed, 0, sizeof(*seed));
	control->members->remembered_until_ns[i] = 0;
	remembered_store(control, i);
}

/* The element of that address, or else the one that it may have; REMEMBERED_MAX: none. */
static unsigned remembered_room(
	struct control *control, const struct seed_address *address, uint64_t now_ns)
{
	const struct members *members = control->members;
	unsigned best = REMEMBERED_MAX;
	/* those of members that are there now stay */
	uint64_t least = now_ns + REMEMBER_NS - control_dead_ns(control);

	for (unsigned i = 0; i < REMEMBERED_MAX; i++) {
		if (seed_same_address(&members->seed[SEEDS_GIVEN + i].address, address))
			return i;
		if (members->remembered_until_ns[i] >= least)
			continue;
		least = members->remembered_until_ns[i];
		best = i;
	}
	return best;
}

void remembered_note(struct control *control, const struct member *member, uint64_t now_ns)
{
	struct members *members = control->members;
	struct seed_address address = {.port = member->record.port};
	struct member_texts texts;
	struct member_seed *seed;
	unsigned i;

	if (member->state != MEMBER_ALIVE || !member_watched(member) || !member->contact->out)
		return;
	member_texts(&member->record, &texts);
	snprintf(address.host, sizeof(address.host), "%s", texts.address);
	i = remembered_room(control, &address, now_ns);
	if (i == REMEMBERED_MAX)
		return;
	seed = remembered_seed(members, i);
	if (!seed_same_address(&seed->address, &address)) {
		rpc_dial_stop(seed->dial);
		seed_set(seed, &address, control->settings);
	}
	snprintf(seed->name, sizeof(seed->name), "%s", texts.name);
	members->remembered_until_ns[i] = now_ns + REMEMBER_NS;
	remembered_store(control, i);
}

static void remembered_tick(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	for (unsigned i = 0; i < members->table.contacts; i++)
		remembered_note(control, members->table.contact[i]->member, now_ns);
	for (unsigned i = 0; i < REMEMBERED_MAX; i++)
		if (seed_used(remembered_seed(members, i)) &&
			members->remembered_until_ns[i] <= now_ns)
			remembered_forget(control, i);
}

/* Anything may be in that memory: the element is copied, then checked. */
static bool remembered_take(struct control *control, unsigned i, uint64_t now_ns)
{
	struct remembered found = control->remembered[i];
	struct member_seed *seed = remembered_seed(control->members, i);
	const char *host = found.address.host;

	if (!member_text_prints(host, sizeof(found.address.host)) || strchr(host, ' ') ||
		!found.address.port || found.until_ns <= now_ns ||
		found.check != remembered_check(control->settings, &found.address) ||
		address_text_loopback(host) !=
			address_text_loopback(control->settings->cluster_address))
		return false;
	seed_set(seed, &found.address, control->settings);
	if (seed->self) {
		memset(seed, 0, sizeof(*seed));
		return false;
	}
	control->members->remembered_until_ns[i] =
		found.until_ns < now_ns + REMEMBER_NS ? found.until_ns : now_ns + REMEMBER_NS;
	return true;
}

void remembered_open(struct control *control)
{
	uint64_t now_ns = net_now();
	unsigned count = 0;

	for (unsigned i = 0; control->remembered && i < REMEMBERED_MAX; i++)
		count += remembered_take(control, i, now_ns);
	if (count)
		log_info("the engine before had %u members: their addresses are dialled, too",
			count);
}

void remembered_left(struct control *control, const struct member *member)
{
	struct members *members = control->members;

	/* of engines that leave at the same time, the first one that is back dials the others */
	for (unsigned i = 0; i < REMEMBERED_MAX && !members->leaving; i++)
		if (member_is_named(&member->record, remembered_seed(members, i)->name))
			remembered_forget(control, i);
}

void remembered_drop(const struct rpc_dial *dial)
{
	/* The next heartbeat forgets it: the caller uses the dial. */
	for (unsigned i = 0; dial && dial->seed && i < REMEMBERED_MAX; i++)
		if (dial->owner == remembered_seed(dial->control->members, i))
			dial->control->members->remembered_until_ns[i] = 0;
}

/* ---- dialling -------------------------------------------------------------------------------- */

static bool seed_listed(
	const struct seed_address *wanted, const struct seed_address *address, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (seed_same_address(&address[i], wanted))
			return true;
	return false;
}

/* The element of these SEEDS_MAX that has the address; NULL: none has. host "": a free element. */
static struct member_seed *seed_find(struct member_seed *seed, const struct seed_address *address)
{
	for (unsigned i = 0; i < SEEDS_MAX; i++)
		if (seed_same_address(&seed[i].address, address))
			return &seed[i];
	return NULL;
}

/*
 * Fills the elements of a source from its list. Elements whose address is not in it are freed, and
 * if it has more addresses than elements, those that do not answer.
 */
static void seeds_fill(struct control *control, enum seed_source source)
{
	struct members *members = control->members;
	struct member_seed *seed = &members->seed[source * SEEDS_MAX];
	const struct seed_address *address = members->list[source].address;
	unsigned count = members->list[source].count, start = count ? net_random() % count : 0;

	for (unsigned i = 0; i < SEEDS_MAX; i++) {
		bool mute = count > SEEDS_MAX && seed[i].dial && seed[i].dial->fails > 0;

		if (seed_listed(&seed[i].address, address, count) && !mute)
			continue;
		rpc_dial_stop(seed[i].dial);
		memset(&seed[i], 0, sizeof(seed[i]));
	}
	for (unsigned i = 0; i < count; i++) {
		const struct seed_address *each = &address[(start + i) % count];
		struct member_seed *room = seed_find(seed, &(struct seed_address){0});

		if (!room)
			break;
		if (!seed_find(seed, each))
			seed_set(room, each, control->settings);
	}
}

/* Of lists that are longer than what is dialled at a time, the next addresses get their turn. */
static void seeds_rotate(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	if (members->alive > 1 && now_ns - members->rotated_ns < MEMBER_ROTATE_NS)
		return;
	members->rotated_ns = now_ns;
	for (unsigned source = 0; source < SEED_SOURCES; source++)
		if (members->list[source].count > SEEDS_MAX)
			seeds_fill(control, source);
}

/*
 * The engine of the seed is dialled by itself, or needs no dial. A dead member is also dialled by
 * itself for a while; a seed that was given may lead to another engine meanwhile.
 */
static bool seed_leads(
	const struct members *members, const struct member_seed *seed, bool remembered)
{
	const struct member *member = seed->name[0] ? member_find(members, seed->name) : NULL;

	return member && (member->state == MEMBER_ALIVE || member->state == MEMBER_CANDIDATE ||
				 (remembered && member->contact->dial));
}

void member_seeds_tick(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;

	seeds_watch(control, now_ns);
	if (control->exporting)
		return;
	seeds_rotate(control, now_ns);
	remembered_tick(control, now_ns);
	for (unsigned i = 0; i < SEED_ELEMENTS; i++) {
		struct member_seed *seed = &members->seed[i];

		if (!seed->address.host[0] || seed->self || seed->dial || now_ns < seed->retry_ns ||
			seed_leads(members, seed, i >= SEEDS_GIVEN))
			continue;
		seed->dial =
			rpc_dial_start(control, &(struct rpc_target){.host = seed->address.host,
							.port = seed->address.port,
							.base_ms = beat_ms / 10 + 1,
							.max_ms = beat_ms * 10,
							.owner = seed,
							.seed = true});
	}
}

/* A seed that may lead to a member, and that has not answered. */
static bool seed_is_open(const struct member_seed *seed)
{
	return seed->address.host[0] && !seed->self && !seed->retry_ns && !seed->name[0];
}

bool member_seeking(const struct control *control)
{
	const struct members *members = control->members;

	if (members->candidates)
		return true;
	if (members->alive > 1 && net_now() - members->sole_last_ns > control_dead_ns(control))
		return false;
	if ((control->settings->cluster_seeds_file[0] && !members->list[SEED_FILE].address) ||
		(control->settings->cluster_etcd[0] && !members->list[SEED_ETCD].address))
		return true;
	for (unsigned i = 0; i < SEEDS_GIVEN; i++)
		if (seed_is_open(&members->seed[i]))
			return true;
	return false;
}

void member_seeds_replace(struct control *control, enum seed_source source,
	const struct seed_address *address, unsigned count)
{
	control->members->list[source].address = address;
	control->members->list[source].count = count;
	seed_source_read(control, source, NULL);
	seeds_fill(control, source);
	member_seeds_tick(control, net_now());
}
