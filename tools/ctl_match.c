/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl match: which hosts have the pages of a list of keys, as routers ask with pc_match().
 * One thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define NOT_KNOWN 4 /* exit status: no host has the first key, as far as owners could be asked */

/* The answer as a document, with the names of the holders. */
static json_object *match_document(
	const struct pc_match *match, unsigned keys, const char *name_space, json_object *members)
{
	json_object *o = json_object_new_object(), *holders = json_object_new_array();

	add_text(o, "name_space", name_space);
	add_number(o, "keys", keys);
	add_number(o, "prefix", match->prefix);
	add_number(o, "unknown", match->unknown);
	add_number(o, "holders_all", match->holders_all);
	for (unsigned k = 0; k < match->holders; k++) {
		const struct pc_holder *h = &match->holder[k];
		json_object *holder = json_object_new_object();
		char ref[9];

		snprintf(ref, sizeof(ref), "%08x", h->ref);
		add_text(holder, "name", json_text(json_member_with(members, ref), "name"));
		add_text(holder, "ref", ref);
		json_object_object_add(holder, "here", json_object_new_boolean(h->here));
		add_number(holder, "prefix", h->prefix);
		add_number(holder, "pages", h->pages);
		add_number(holder, "pages_on_disk", h->pages_on_disk);
		json_object_array_add(holders, holder);
	}
	json_object_object_add(o, "holders", holders);
	return o;
}

static void match_print(json_object *o)
{
	json_object *holders = json_get(o, "holders");
	char name[PLAIN_BYTES];

	printf("%lld of %lld keys from the first on are stored; %lld hosts have pages of them\n",
		(long long)json_number(o, "prefix"), (long long)json_number(o, "keys"),
		(long long)json_number(o, "holders_all"));
	if (json_number(o, "unknown"))
		printf("%lld keys are not known: an owner cannot be asked; see explain\n",
			(long long)json_number(o, "unknown"));
	for (size_t i = 0; i < json_length(holders); i++) {
		json_object *h = json_at(holders, i);

		json_plain(h, "name", name);
		printf("  %s%s: prefix %lld, pages %lld, of these on disk %lld\n",
			*name ? name : json_text(h, "ref"),
			json_flag(h, "here") ? " (this host)" : "",
			(long long)json_number(h, "prefix"), (long long)json_number(h, "pages"),
			(long long)json_number(h, "pages_on_disk"));
	}
}

int ctl_match(struct ctl_run *ctl, int count, char **keys)
{
	struct pc_page *pages = calloc((size_t)count, sizeof(*pages));
	struct pc_match match;
	json_object *report, *o;

	for (int i = 0; pages && i < count; i++)
		pages[i] = (struct pc_page){.key = keys[i], .key_bytes = strlen(keys[i])};
	if (!pages || pc_match(ctl->channel, pages, (unsigned)count, ctl->timeout_ms, &match, NULL))
		die("%s", pages ? pc_error() : "out of memory");
	free(pages);
	report = engine_report(ctl->pc);
	o = match_document(&match, (unsigned)count, ctl->name_space, json_get(report, "members"));
	if (ctl->json)
		print_json(json_object_get(o), stdout);
	else
		match_print(o);
	json_object_put(o);
	json_object_put(report);
	if (match.prefix)
		return 0;
	return match.unknown ? NOT_KNOWN : 1;
}
