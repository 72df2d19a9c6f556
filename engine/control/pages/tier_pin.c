/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins. A page that was read from disk for a client stays in memory until that client has copied it
 * (CTL_TOUCH), or until its deadline: it could otherwise be evicted before it was of use. Pins end
 * by a wheel of TIER_PIN_STEPS lists, one for each TIER_PIN_NS. The control plane's thread only.
 */
#include <stdlib.h>

#include "engine/control/pages/pool.h"
#include "engine/control/pages/tier.h"
#include "numa/clock.h"

static void pin_end(struct tier *t, struct tier_pin *pin)
{
	pool_unpin(t->control->rail[place_rail(pin->place)].pool, pin->place, pin->generation);
	LIST_REMOVE(pin, same);
	TAILQ_REMOVE(&t->wheel[pin->step], pin, next);
	t->pinned_bytes -= pin->bytes;
	t->pins--;
	t->promote_due = true;
	free(pin);
}

static struct tier_pin *pin_find(struct tier *t, uint32_t place, uint32_t generation)
{
	struct tier_pin *pin;

	LIST_FOREACH (pin, &t->pin_of[tier_chain(place)], same)
		if (pin->place == place && (generation == 0 || pin->generation == generation))
			return pin;
	return NULL;
}

void tier_pin(struct tier *t, uint32_t place, uint32_t generation, uint32_t bytes, uint32_t readers,
	uint64_t deadline_ns)
{
	uint64_t now_ns = clock_now_ns(), steps;
	struct tier_pin *pin = readers ? malloc(sizeof(*pin)) : NULL;

	if (!pin || pool_pin(t->control->rail[place_rail(place)].pool, place, generation) < 0) {
		free(pin);
		t->pinned_bytes -= bytes;
		t->promote_due = true;
		return;
	}
	if (!t->pins)
		t->wheel_ns = now_ns / TIER_PIN_NS * TIER_PIN_NS;
	steps = deadline_ns > t->wheel_ns ? (deadline_ns - t->wheel_ns) / TIER_PIN_NS : 0;
	if (steps > TIER_PIN_STEPS - 2)
		steps = TIER_PIN_STEPS - 2;
	*pin = (struct tier_pin){.place = place,
		.generation = generation,
		.bytes = bytes,
		.readers = readers,
		.step = (unsigned)((t->wheel_ns / TIER_PIN_NS + steps) % TIER_PIN_STEPS)};
	LIST_INSERT_HEAD(&t->pin_of[tier_chain(place)], pin, same);
	TAILQ_INSERT_TAIL(&t->wheel[pin->step], pin, next);
	t->pins++;
	tier_tick(t);
}

void tier_touched(struct control *control, uint32_t place, uint32_t generation)
{
	struct tier *t = control->tier;
	struct tier_pin *pin = t && t->pins ? pin_find(t, place, generation) : NULL;

	if (pin && --pin->readers == 0)
		pin_end(t, pin);
}

void tier_pins_end(struct tier *t, uint64_t now_ns)
{
	while (t->pins && t->wheel_ns + TIER_PIN_NS <= now_ns) {
		struct tier_pins *step = &t->wheel[t->wheel_ns / TIER_PIN_NS % TIER_PIN_STEPS];
		struct tier_pin *pin;

		while ((pin = TAILQ_FIRST(step)))
			pin_end(t, pin);
		t->wheel_ns += TIER_PIN_NS;
	}
}

void tier_pins_close(struct tier *t)
{
	struct tier_pin *pin;

	for (unsigned i = 0; i < TIER_PIN_STEPS; i++)
		while ((pin = TAILQ_FIRST(&t->wheel[i])))
			pin_end(t, pin);
}
