-- wrk: the request in the file of the first argument, each time with another number where @@NUMBER@@ stands; then "name: value" headers.
-- The number has always as many digits, so that a request is made by one concatenation: what asks must take little from what is measured.
local DIGITS = "%09d"
local before, after
local counter = 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local template = file:read("*a")
  file:close()
  local headers = { ["content-type"] = "application/json" }
  for index = 2, #args do
    local name, value = args[index]:match("^([^:]+): (.*)$")
    headers[name] = value
  end
  local zero = DIGITS:format(0)
  local from, to = template:find("@@NUMBER@@", 1, true)
  after = template:sub(to + 1)
  local whole = wrk.format("POST", "/v1/chat/completions", headers, template:sub(1, from - 1) .. zero .. after)
  before = whole:sub(1, #whole - #after - #zero)
end

function request()
  counter = counter + 1
  return before .. DIGITS:format(counter) .. after
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format('RESULT {"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
