/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl explain: why one key is found or not. pc_explain() asks the owners of the key and
 * reads the page heads; this file adds what the engine's report tells about the members, searches
 * the disk of this host, and draws the conclusion. One thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define KEY_BYTES_MAX 1024u
#define NOT_KNOWN 4 /* exit status: an owner or a holder could not be asked */

enum verdict { PRESENT, ON_DISK, ABSENT, EVICTED, HOLDER_DEAD, HOLDER_OUT, OWNER_OUT, NO_OWNER };
static const struct {
	const char *name;
	int status;
} verdict_about[] = {
	[PRESENT] = {"present", 0},
	[ON_DISK] = {"on disk", 0},
	[ABSENT] = {"absent", 1},
	[EVICTED] = {"evicted", 1},
	[HOLDER_DEAD] = {"holder dead", 1},
	[HOLDER_OUT] = {"holder unreachable", NOT_KNOWN},
	[OWNER_OUT] = {"owner unreachable", NOT_KNOWN},
	[NO_OWNER] = {"no owner", NOT_KNOWN},
};

static bool flag(json_object *o, const char *name)
{
	return json_object_get_boolean(json_get(o, name));
}

/* The first object of the array whose member `name` is `text`; NULL: none. */
static json_object *first_with(json_object *array, const char *name, const char *text)
{
	for (size_t i = 0; i < json_length(array); i++)
		if (!strcmp(json_text(json_at(array, i), name), text))
			return json_at(array, i);
	return NULL;
}

/* ---- what is known --------------------------------------------------------------------------- */

/*
 * The member on the map with this ref, 8 hexadecimal digits: the low half of its incarnation. NULL:
 * none.
 */
static json_object *member_with(json_object *members, const char *ref)
{
	for (size_t i = 0; i < json_length(members); i++) {
		json_object *member = json_at(members, i);
		const char *incarnation = json_text(member, "incarnation");
		size_t length = strlen(incarnation);

		if (length >= 8 && !strcmp(incarnation + length - 8, ref))
			return member;
	}
	return NULL;
}

/*
 * Adds to each owner and holder its name, "" if it is no member now, and why this host suspects it;
 * "": it does not.
 */
static void add_member(json_object *array, json_object *members)
{
	for (size_t i = 0; i < json_length(array); i++) {
		json_object *o = json_at(array, i);
		json_object *member = member_with(members, json_text(o, "ref"));

		json_object_object_add(
			o, "name", json_object_new_string(json_text(member, "name")));
		json_object_object_add(
			o, "suspect", json_object_new_string(json_text(member, "suspect")));
	}
}

/* Asks pc_explain(). NULL: no engine, or it ended. */
static json_object *explain(struct ctl_run *ctl, const char *key)
{
	json_object *found = NULL;
	char *text;

	if (pc_explain(ctl->channel, key, strlen(key), ctl->timeout_ms / 2, &text))
		return NULL;
	found = json_tokener_parse(text);
	free(text);
	return found;
}

static bool on_disk(struct ctl_run *ctl, const char *key)
{
	struct pc_page page = {.key = key, .key_bytes = strlen(key)};
	enum pc_result result = PC_MISS;

	return !pc_exists(ctl->channel, &page, 1, ctl->timeout_ms / 4 + 1, &result) &&
	       result == PC_HIT;
}

/* What a reader of this host gets, as far as the directory tells. */
static enum verdict conclude(json_object *found)
{
	json_object *owners = json_get(found, "owners"), *holders = json_get(found, "holders");

	if (!json_length(owners))
		return NO_OWNER;
	if (first_with(holders, "state", "page"))
		return PRESENT;
	if (first_with(holders, "state", "on disk"))
		return ON_DISK;
	if (first_with(holders, "state", "unreachable"))
		return HOLDER_OUT;
	if (first_with(owners, "answer", "unreachable"))
		return OWNER_OUT;
	if (first_with(holders, "state", "evicted") || first_with(holders, "state", "other key"))
		return EVICTED;
	return json_length(holders) ? HOLDER_DEAD : ABSENT;
}

/* ---- text ------------------------------------------------------------------------------------ */

static const char *plain(json_object *o, const char *name, char ret[static 128])
{
	text_plain(json_text(o, name), ret, 128);
	return ret;
}

/* True if an owner by the current map does not name the page's holder. */
static bool owner_lacks(json_object *owners)
{
	for (size_t i = 0; i < json_length(owners); i++) {
		json_object *o = json_at(owners, i);

		if (!flag(o, "former") && strcmp(json_text(o, "answer"), "present") != 0)
			return true;
	}
	return false;
}

/* Writes the conclusion as one sentence. */
static void sentence(json_object *found, enum verdict verdict, char *ret, size_t bytes)
{
	json_object *owners = json_get(found, "owners"), *holders = json_get(found, "holders"), *o;
	char name[128], why[128];

	switch (verdict) {
	case PRESENT:
		o = first_with(holders, "state", "page");
		snprintf(ret, bytes, "found: %s holds the page, %lld bytes%s",
			plain(o, "name", name), (long long)json_number(o, "bytes"),
			owner_lacks(owners) ? "; not every owner has the entry" : "");
		return;
	case ON_DISK:
		o = first_with(holders, "state", "on disk");
		snprintf(ret, bytes, "found: on the disk of %s%s",
			!o || flag(o, "here") ? "this host" : plain(o, "name", name),
			o && owner_lacks(owners) ? "; not every owner has the entry" : "");
		return;
	case ABSENT:
		snprintf(ret, bytes,
			"not found: no owner has an entry: the key was not stored in this "
			"namespace, or it was evicted or removed");
		return;
	case EVICTED:
		o = first_with(holders, "state", "evicted");
		snprintf(ret, bytes,
			"not found: the directory names %s, which does not have the page any more; "
			"a read removes the entry",
			plain(o ? o : first_with(holders, "state", "other key"), "name", name));
		return;
	case HOLDER_DEAD:
		snprintf(ret, bytes,
			"not found: the holder that the directory names is no longer a member, and "
			"its pages are gone");
		return;
	case HOLDER_OUT:
		o = first_with(holders, "state", "unreachable");
		snprintf(ret, bytes,
			"not known: %s holds the page, says the directory, but cannot be read: %s",
			plain(o, "name", name), plain(o, "why", why));
		return;
	case OWNER_OUT:
		o = first_with(owners, "answer", "unreachable");
		snprintf(ret, bytes,
			"not known: the owner %s cannot be asked: %s; no other owner has the key",
			plain(o, "name", name), plain(o, "why", why));
		return;
	default: snprintf(ret, bytes, "not known: this engine has no map of the cluster"); return;
	}
}

static void print_member(json_object *o)
{
	char name[128];

	plain(o, "name", name);
	printf("  %s%s%s: ", *name ? name : "a former member",
		flag(o, "here") ? " (this host)" : "",
		flag(o, "former") ? " (owner by the map before)" : "");
}

static void print_owner(json_object *o)
{
	json_object *buckets = json_get(o, "buckets");

	print_member(o);
	printf("%s", json_text(o, "answer"));
	if (*json_text(o, "why"))
		printf(": %s", json_text(o, "why"));
	printf("; bucket %lld", (long long)json_object_get_int64(json_at(buckets, 0)));
	if (json_number(o, "read") > 1)
		printf(", which is full, and %lld",
			(long long)json_object_get_int64(json_at(buckets, 1)));
	if (*json_text(o, "suspect"))
		printf("; suspect: %s", json_text(o, "suspect"));
	printf("\n");
}

static void print_holder(json_object *o)
{
	const char *state = json_text(o, "state");

	print_member(o);
	if (!strcmp(state, "page"))
		printf("has the page, %lld bytes, CRC %s %s", (long long)json_number(o, "bytes"),
			json_text(o, "crc"), flag(o, "proven") ? "proven" : "not proven");
	else if (*json_text(o, "why"))
		printf("%s: %s", state, json_text(o, "why"));
	else if (!strcmp(state, "on disk"))
		printf("has the page on disk; a get reads it into memory there");
	else
		printf("%s: the page head there has generation %lld", state,
			(long long)json_number(o, "head_generation"));
	if (!strcmp(state, "on disk"))
		printf("; entry: ref %s", json_text(o, "ref"));
	else
		printf("; entry: rail %lld, unit %lld, generation %lld, ref %s",
			(long long)json_number(o, "rail"), (long long)json_number(o, "unit"),
			(long long)json_number(o, "generation"), json_text(o, "ref"));
	if (*json_text(o, "suspect"))
		printf("; suspect: %s", json_text(o, "suspect"));
	printf("\n");
}

static void print_found(const struct ctl_run *ctl, const char *key, json_object *found)
{
	json_object *owners = json_get(found, "owners"), *holders = json_get(found, "holders");

	printf("key: %s, namespace: %s\n", key, ctl->name_space);
	printf("hash: %s, slot %lld, %lld members, map epoch %lld\n", json_text(found, "hash"),
		(long long)json_number(found, "slot"), (long long)json_number(found, "members"),
		(long long)json_number(found, "epoch"));
	printf("owners:\n");
	for (size_t i = 0; i < json_length(owners); i++)
		print_owner(json_at(owners, i));
	printf("places that the owners name:%s\n", json_length(holders) ? "" : " none");
	for (size_t i = 0; i < json_length(holders); i++)
		print_holder(json_at(holders, i));
	printf("disk of this host: %s\n", json_text(found, "on_disk"));
	printf("%s\n", json_text(found, "text"));
}

/* ---- the command ----------------------------------------------------------------------------- */

/* A member has the page, as the directory says. */
static bool named(json_object *found)
{
	enum verdict verdict = conclude(found);

	return verdict == PRESENT || verdict == ON_DISK;
}

/*
 * Searches the disk of this host, if no member is named. Returns what it found. An entry that came
 * meanwhile answers the search, too: then *found is replaced by what the directory says now.
 */
static const char *disk_search(struct ctl_run *ctl, const char *key, json_object **found)
{
	json_object *again;

	if (!flag(*found, "disk"))
		return "none in service";
	if (named(*found))
		return "not searched";
	if (!on_disk(ctl, key))
		return "does not have the page";
	again = explain(ctl, key);
	if (!again || !named(again)) {
		json_object_put(again);
		return "has the page";
	}
	json_object_put(*found);
	*found = again;
	return "not searched";
}

/* Completes `found`, which pc_explain() has made. Returns the conclusion. */
static enum verdict complete(
	struct ctl_run *ctl, const char *key, json_object *found, json_object *report)
{
	const char *disk = json_text(found, "on_disk");
	enum verdict verdict = !strcmp(disk, "has the page") ? ON_DISK : conclude(found);
	char text[512];

	add_member(json_get(found, "owners"), json_get(report, "members"));
	add_member(json_get(found, "holders"), json_get(report, "members"));
	sentence(found, verdict, text, sizeof(text));
	json_object_object_add(
		found, "verdict", json_object_new_string(verdict_about[verdict].name));
	json_object_object_add(found, "text", json_object_new_string(text));
	json_object_object_add(found, "key", json_object_new_string(key));
	json_object_object_add(found, "name_space", json_object_new_string(ctl->name_space));
	return verdict;
}

int ctl_explain(struct ctl_run *ctl, const char *key)
{
	json_object *report, *found;
	enum verdict verdict;

	if (!*key || strlen(key) > KEY_BYTES_MAX)
		die("a key has 1 to %u characters", KEY_BYTES_MAX);
	ctl_deadline(ctl);
	if (pc_open(&(struct pc_options){.socket = ctl->socket, .name_space = ctl->name_space},
		    &ctl->pc) ||
		pc_channel_open(ctl->pc, &ctl->channel))
		return ctl_no_answer(ctl, pc_error());
	found = explain(ctl, key);
	if (found) {
		const char *disk = disk_search(ctl, key, &found);

		json_object_object_add(found, "on_disk", json_object_new_string(disk));
	}
	report = found ? engine_report(ctl->pc) : NULL;
	if (!report)
		return ctl_no_answer(ctl, pc_error());
	verdict = complete(ctl, key, found, report);
	if (ctl->json)
		print_json(found, stdout);
	else
		print_found(ctl, key, found);
	fflush(stdout);
	json_object_put(found);
	json_object_put(report);
	pc_channel_close(ctl->channel);
	return verdict_about[verdict].status;
}
