import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";

export default function (pi: ExtensionAPI) {
	// Tries at one job have to differ, or none is better than another; the engine's own default here is the likeliest answer each time.
	pi.on("before_provider_request", (event) => ({ ...(event.payload as Record<string, unknown>), temperature: 1 }));
}
