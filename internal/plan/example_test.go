package plan_test

// designExample is the example of the design, with a plan and a hash added where the design omits them.
const designExample = `plans:
  - id: pro
    limits:
      - id: burst                      # tenant-wide, every route
        per: tenant                    # tenant (default) | endpoint | subject | api_key | ip | claim:region | a list
        algorithm: token_bucket
        rate: 100                      # units per period
        period: 1s
        burst: 200
      - id: put-product
        match: { methods: [PUT], pathPattern: "/v1/organizations/{orgId}/product/*" }
        tiers: [ { period: 1s, threshold: 20 }, { period: 10s, threshold: 100 } ]
        mode: enforce                  # enforce | shadow (counted apart, never denies) | off
        onStoreFailure: backstop       # backstop (default) | open | closed
        cost: { trustedHeader: x-query-cost, max: 1000, default: 1 }
      - id: monthly
        quota: { units: 1000000, every: month, timezone: Europe/Paris, anchorDay: 15 }
  - id: public
    limits: [ { id: anonymous, per: ip, algorithm: token_bucket, rate: 5, period: 1s } ]
tenants:
  - { id: acme, plan: pro, overrides: [ { id: burst, rate: 500 } ], cells: [eu-1] }
ipLimits:                              # before authentication: every attempt from an address counts
  - { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, burst: 100 }
anonymousPlan: public
routes: [ { methods: [GET], pathPattern: "/product/*" }, { pathPattern: "/v1/**" } ]
keys: [ { id: k1, tenant: acme, subject: ci, pepper: dev,
          hash: "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0" } ]
`
